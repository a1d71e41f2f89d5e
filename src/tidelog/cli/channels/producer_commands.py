"""`tidelog producer`: who writes to a channel under an id of its own, and since when nobody did.

Exit codes: 0 done; 1 refused, or nobody answered; 2 the call is wrong.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from tidelog.cli.channels.commands import reaching
from tidelog.cli.lazy import LazyGroup


@click.group(cls=LazyGroup)
def producer() -> None:
    """Look at producers of channels, and remove them. Those without a name end with their client; others are closed
    after `producers.expiry` without a record."""


@producer.command(name="list")
@click.argument("channel")
@reaching
def list_producers(channel: str, **options: Any) -> None:
    """List the open producers of CHANNEL, the one that was silent longest first."""
    from tidelog.cli.channels.actions import ask, reach_of
    from tidelog.cli.output import print_json, print_table

    reach = reach_of(**options)
    found = ask(reach, lambda client: client.producers(channel))
    found.sort(key=lambda one: (max(one["opened_at_ms"], one["used_at_ms"] or 0), one["producer_id"]))
    if reach.as_json:
        print_json({"channel": channel, "producers": found})
        return
    rows = [
        [
            one["name"],
            one["owner"],
            str(one["producer_id"]),
            str(one["epoch"]),
            _time(one["opened_at_ms"]),
            _time(one["used_at_ms"]),
        ]
        for one in found
    ]
    headings = ["producer", "owner", "id", "epoch", "opened", "last wrote"]
    print_table("", headings, rows, left=frozenset({"producer", "owner", "opened", "last wrote"}))


@producer.command()
@click.argument("channel")
@click.argument("name")
@reaching
def remove(channel: str, name: str, **options: Any) -> None:
    """Close producer NAME of CHANNEL. One that still writes opens itself anew; what it was just sending may then be in
    the channel or not."""
    from tidelog.cli.channels.actions import ask, reach_of
    from tidelog.cli.output import print_json

    reach = reach_of(**options)
    removed = ask(reach, lambda client: client.remove_producer(channel, name))
    if reach.as_json:
        print_json({"channel": channel, "producer": name, "removed": removed})
    else:
        print(f"producer {name} of {channel} is closed" if removed else f"channel {channel} has no producer {name}")


def _time(at_ms: int | None) -> str:
    return "-" if not at_ms else datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
