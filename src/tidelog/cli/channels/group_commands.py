"""`tidelog group` and `tidelog cursor`: who reads what together, and where readers stand.

Any node can be asked. Exit codes: 0 done; 1 refused, or nobody answered; 2 the call is wrong.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import click

from tidelog.cli.channels.commands import reaching
from tidelog.cli.lazy import LazyGroup

if TYPE_CHECKING:
    from tidelog.client import Client

_UNKNOWN: Final = "-"
_ASKED_AT_ONCE: Final = 16
_CHANNEL_MS: Final = 2_000


@click.group(cls=LazyGroup)
def group() -> None:
    """Look at consumer groups, and delete them."""


@group.command(name="list")
@reaching
def list_groups(**options: Any) -> None:
    """List the groups that have members."""
    from tidelog.cli.channels.actions import ask, reach_of
    from tidelog.cli.output import print_json, print_table

    reach = reach_of(**options)
    groups = ask(reach, lambda client: client.groups())
    if reach.as_json:
        print_json({"groups": groups})
        return
    rows = [[one["group"], one["coordinator"], *(str(one[name]) for name in _COUNTS)] for one in groups]
    print_table("", ["group", "coordinator", *_COUNTS], rows, left=frozenset({"group", "coordinator"}))


_COUNTS: Final = ("epoch", "members", "channels")


@group.command()
@click.argument("name")
@reaching
def describe(name: str, **options: Any) -> None:
    """Show the members of group NAME, what each reads, and how far behind it is."""
    from tidelog.cli.channels.actions import ask, reach_of
    from tidelog.cli.output import print_json, print_table

    reach = reach_of(**options)
    found = ask(reach, lambda client: _with_positions(client, name))
    if reach.as_json:
        print_json(found)
        return
    print(f"group {name}, epoch {found['epoch']}, coordinated by {found['coordinator']}")
    rows = [
        [member["member"], member["owner"], one["channel"], _shown(one["position"]), _shown(one["behind"])]
        for member in found["members"]
        for one in member["channels"] or [{"channel": _UNKNOWN, "position": None, "behind": None}]
    ]
    left = frozenset({"member", "owner", "channel"})
    print_table("", ["member", "owner", "channel", "position", "behind"], rows, left=left)


def _shown(number: int | None) -> str:
    return _UNKNOWN if number is None else str(number)


async def _with_positions(client: Client, name: str) -> dict[str, Any]:
    """The group, with its committed position in every channel and how many offsets follow it."""
    from tidelog.core.catalog import group_cursor
    from tidelog.errors import LogError

    found = await client.describe_group(name)
    room = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def standing(channel_id: int, channel: str) -> dict[str, Any]:
        facts: dict[str, Any] = {"channel": channel, "channel_id": channel_id, "position": None, "behind": None}
        async with room:
            try:
                facts["position"] = (await client.cursors(channel, timeout_ms=_CHANNEL_MS)).get(group_cursor(name))
                offsets = await client.offsets(channel, timeout_ms=_CHANNEL_MS)
            except LogError as error:
                facts["problem"] = str(error)  # a channel without a leader is listed all the same
                return facts
        facts["behind"] = offsets.committed_end - max(facts["position"] or 0, offsets.log_start)
        return facts

    for member in found["members"]:
        member["channels"] = await asyncio.gather(*(standing(*channel) for channel in member["channels"]))
    return found


@group.command()
@click.argument("name")
@reaching
def delete(name: str, **options: Any) -> None:
    """Forget group NAME and its members; positions stay. Members that run join again by themselves."""
    from tidelog.cli.channels.actions import ask, reach_of
    from tidelog.cli.output import print_json

    reach = reach_of(**options)
    ask(reach, lambda client: client.delete_group(name))
    if reach.as_json:
        print_json({"group": name, "deleted": True})
    else:
        print(f"group {name} is deleted")


@click.group(cls=LazyGroup)
def cursor() -> None:
    """Look at named cursors of channels, and move them. A cursor holds retention back until it is deleted."""


@cursor.command(name="list")
@click.argument("channel")
@reaching
def list_cursors(channel: str, **options: Any) -> None:
    """List the cursors of CHANNEL."""
    from tidelog.cli.channels.actions import ask, reach_of
    from tidelog.cli.output import print_json, print_table

    reach = reach_of(**options)
    cursors = ask(reach, lambda client: client.cursors(channel))
    if reach.as_json:
        print_json({"channel": channel, "cursors": cursors})
    else:
        rows = [[name, str(offset)] for name, offset in sorted(cursors.items())]
        print_table("", ["cursor", "offset"], rows, left=frozenset({"cursor"}))


@cursor.command(name="set")
@click.argument("channel")
@click.argument("name")
@click.argument("offset", type=click.IntRange(min=0))
@reaching
def set_cursor(channel: str, name: str, offset: int, **options: Any) -> None:
    """Let cursor NAME of CHANNEL stand at OFFSET: reading goes on there. That of a group is `group.<its name>`; stop
    its members first, or they move it back."""
    from tidelog.cli.channels.actions import ask, reach_of
    from tidelog.cli.output import print_json

    reach = reach_of(**options)
    ask(reach, lambda client: client.set_cursor(channel, name, offset))
    if reach.as_json:
        print_json({"channel": channel, "cursor": name, "offset": offset})
    else:
        print(f"cursor {name} of {channel} stands at {offset}")


@cursor.command(name="delete")
@click.argument("channel")
@click.argument("name")
@reaching
def delete_cursor(channel: str, name: str, **options: Any) -> None:
    """Forget cursor NAME of CHANNEL, so that it holds nothing back any more."""
    from tidelog.cli.channels.actions import ask, reach_of
    from tidelog.cli.output import print_json

    reach = reach_of(**options)
    ask(reach, lambda client: client.delete_cursor(channel, name))
    if reach.as_json:
        print_json({"channel": channel, "cursor": name, "deleted": True})
    else:
        print(f"cursor {name} of {channel} is deleted")
