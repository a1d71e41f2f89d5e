"""Whether the table below is still the one that a table was built from.

A follower stores the version that it has consumed, which means nothing in another table: one that was made again in the
same folder, or an older copy that was put back. So it stores a mark of that version too (`Table.mark_at`).
"""

from __future__ import annotations

from tidelog.errors import UpstreamReplaced
from tidelog.pipeline.tables.table import Table


def is_same(upstream: Table, follower: Table, pipeline: str) -> bool:
    """Whether the consumed version is one of this table. True where that is no longer known."""
    name = upstream.layout.name
    consumed = follower.consumed(pipeline, name)
    if consumed is None:
        return True
    if consumed > upstream.version():
        return False
    stored, found = follower.consumed_mark(pipeline, name), upstream.mark_at(consumed)
    return stored is None or found is None or stored == found


def require_same(upstream: Table, follower: Table, pipeline: str) -> None:
    if not is_same(upstream, follower, pipeline):
        raise UpstreamReplaced(table=follower.layout.name, upstream=upstream.layout.name)
