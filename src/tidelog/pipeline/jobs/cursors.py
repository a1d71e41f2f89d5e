"""The named cursors of a pipeline in the log: retention respects them (R12), also those of a pipeline that no longer
runs.

A pipeline moves its cursor behind each commit of `frames` (`frames_job`). The cursor of a retired pipeline must be
released, or the log keeps everything from its last commit on, up to the limit for cursors. Tables are not changed: a
pipeline that runs again sets its cursors anew, and reports what retention removed meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidelog.errors import InvalidConfig
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.sources.logs import fits

if TYPE_CHECKING:
    from tidelog.client.sync import SyncClient

CURSOR_PREFIX: Final = "pipeline."


def cursor_name(pipeline: str) -> str:
    return CURSOR_PREFIX + pipeline


def held_cursors(address: LogsAddress, pipeline: str, channels: Sequence[str] = ("*",)) -> dict[str, int]:
    """The offsets of the pipeline's cursors, by channel; channels without one are left out."""
    client = _client(address)
    try:
        names = sorted(str(one["name"]) for one in client.channels() if fits(str(one["name"]), channels))
        found = {name: client.cursors(name).get(cursor_name(pipeline)) for name in names}
    finally:
        client.close(flush=False)
    return {name: offset for name, offset in found.items() if offset is not None}


def delete_cursors(address: LogsAddress, pipeline: str, held: Mapping[str, int]) -> None:
    """Release these channels. May be repeated: a cursor that is already gone is no error."""
    client = _client(address)
    try:
        for channel in held:
            client.delete_cursor(channel, cursor_name(pipeline))
    finally:
        client.close(flush=False)


def _client(address: LogsAddress) -> SyncClient:
    if not address.cluster:
        raise InvalidConfig(
            section="pipeline", problems=["a folder of logs keeps no cursors; name the cluster that the pipeline reads"]
        )

    return address.connect()
