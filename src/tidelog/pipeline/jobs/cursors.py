"""The named cursors of a pipeline in the log: they hold retention back (R12), also for a pipeline nobody runs any more.

A pipeline moves its cursor behind each commit of `frames` (`frames_job`). One that is retired must be told to let go,
or the log keeps everything from its last commit on, up to the bound on what cursors may hold. Tables are not touched:
a pipeline that runs again sets its cursors anew, and says what retention took meanwhile, if it took anything.
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
    """Where the pipeline's cursor stands, by channel; channels without one are left out."""
    client = _client(address)
    try:
        names = sorted(str(one["name"]) for one in client.channels() if fits(str(one["name"]), channels))
        found = {name: client.cursors(name).get(cursor_name(pipeline)) for name in names}
    finally:
        client.close(flush=False)
    return {name: offset for name, offset in found.items() if offset is not None}


def delete_cursors(address: LogsAddress, pipeline: str, held: Mapping[str, int]) -> None:
    """Let go of these channels. May be done again: a cursor that is gone already is no error."""
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
