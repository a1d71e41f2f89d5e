"""`tidelog channel`: create channels, look at them, change and delete them.

Only the options live here; the work is in `tidelog.cli.channels.actions`, loaded when a command is called.
"""

from __future__ import annotations

from typing import Any, Final

import click

from tidelog.cli import reach_options
from tidelog.cli.lazy import LazyGroup, forwards

_ACTIONS: Final = "tidelog.cli.channels.actions"
reaching = reach_options.reaching(
    certificate="A client's or operator's certificate.", timeout="30s", timeout_help="How long a call may take."
)
"""The options with which every command finds the cluster."""

_SETTINGS = (
    click.option("--replicated/--unreplicated", default=None, help="Unreplicated: on one node, silent on the wire."),
    click.option("--factor", type=int, help="Replicas including the leader, 1 to 16."),
    click.option(
        "--placement", type=click.Choice(["standard", "pinned", "colocation_strict"]), help="Where replicas live."
    ),
    click.option("--pinned-nodes", metavar="NODE,...", help="With pinned placement: where."),
    click.option(
        "--placement-metadata", multiple=True, metavar="KEY=VALUE", help="What placement goes by; may be given again."
    ),
    click.option("--heartbeat-ms", type=int, help="A leader is silent after three of them; from 100."),
    click.option("--leader-pinned", metavar="NODE", help="Leads whenever it is healthy; 'none' takes it back."),
    click.option(
        "--on-under-capacity", type=click.Choice(["withdraw", "evict_oldest"]), help="What a full replica does."
    ),
    click.option("--replication-budget-fraction", type=float, help="Of a link's peak that catch-up may use, (0, 1]."),
    click.option("--min-isr", type=int, help="Below so many in-sync replicas writes are refused."),
    click.option("--skip-threshold", metavar="SIZE", help="How far behind a replica skips or rebuilds; 100MiB."),
    click.option("--fsync", type=click.Choice(["always", "interval", "never"]), help="When an append counts as done."),
    click.option("--fsync-interval-ms", type=int, help="With fsync interval."),
    click.option(
        "--bandwidth-class",
        type=click.Choice(["foreground", "background", "realtime"]),
        help="Whose traffic goes first.",
    ),
    click.option("--retention-age", metavar="DURATION", help="Trim what is older; 'none' for no limit."),
    click.option("--retention-bytes", metavar="SIZE", help="Trim beyond it; 'none' for no limit."),
    click.option("--retention-events", metavar="COUNT", help="Trim beyond it; 'none' for no limit."),
    click.option("--persistent/--memory", default=None, help="On disk, or in memory only. Fixed for life."),
    click.option("--subject", help="The NATS subject that its leader feeds the channel from; 'none' takes it back."),
    click.option("--queue-group", metavar="NAME", help="Channels of one group share a subject's messages; or 'none'."),
)


_configuring = reach_options.with_options(_SETTINGS)
"""Every knob of a channel, by the name it has in its config."""

_REACH_NAMES = ("nodes", "tls_cert", "tls_key", "tls_ca", "insecure_dev", "timeout", "as_json")


def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of a channel, and how to reach the cluster."""
    reach = {name: options.pop(name) for name in _REACH_NAMES}
    return options, reach


@click.group(cls=LazyGroup)
def channel() -> None:
    """Create channels, look at them, change and delete them.

    Any node can be asked; it passes on what only the leader can do. Exit codes: 0 done; 1 refused, or nobody answered;
    2 the call is wrong.
    """


@channel.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--wait", metavar="DURATION", help="Wait so long until they take writes; exit code 1 if they do not.")
@_configuring
@reaching
def create(names: tuple[str, ...], wait: str | None, **options: Any) -> None:
    """Create channels NAMES, all alike. Fine if they exist with the same settings.

    A channel that cannot have all of its replicas yet is created all the same, and stderr says what it lacks.
    """
    from tidelog.cli.channels.actions import run_create

    settings, reach = _split(options)
    run_create(names, settings, wait=wait, **reach)


@channel.command(name="list")
@reaching
@forwards(_ACTIONS, "run_list")
def list_channels() -> None:
    """List all channels: who leads, who is in sync, how far they are."""


@channel.command()
@click.argument("name")
@reaching
@forwards(_ACTIONS, "run_describe")
def describe() -> None:
    """Show everything about channel NAME."""


@channel.command()
@click.argument("name")
@click.option("--replicas", metavar="NODE,...", help="Put the replicas exactly there.")
@click.option("--if-epoch", type=int, help="Only if the channel epoch is this one.")
@_configuring
@reaching
def alter(name: str, replicas: str | None, if_epoch: int | None, **options: Any) -> None:
    """Change settings of channel NAME; those not given stay as they are."""
    from tidelog.cli.channels.actions import run_alter

    settings, reach = _split(options)
    run_alter(name, settings, replicas=replicas, if_epoch=if_epoch, **reach)


@channel.command()
@click.argument("name")
@reaching
@forwards(_ACTIONS, "run_state", op="pause")
def pause() -> None:
    """Stop channel NAME: nothing is written, read or replicated until it is resumed."""


@channel.command()
@click.argument("name")
@reaching
@forwards(_ACTIONS, "run_state", op="resume")
def resume() -> None:
    """Let a paused channel NAME go on."""


@channel.command()
@click.argument("name")
@click.option("--off", is_flag=True, help="Let it be written again.")
@reaching
def readonly(name: str, off: bool, **reach: Any) -> None:
    """Let channel NAME be read and no longer written."""
    from tidelog.cli.channels.actions import run_state

    run_state(name, "writable" if off else "readonly", **reach)


@channel.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask: all records of the channel are gone then, for good.")
@reaching
@forwards(_ACTIONS, "run_delete")
def delete() -> None:
    """Delete channel NAME with all of its records."""


@channel.command()
@click.argument("name")
@click.argument("leader", required=False)
@click.option("--unclean", is_flag=True, help="Even if LEADER is not in sync. Committed records may be lost; recorded.")
@reaching
@forwards(_ACTIONS, "run_elect")
def elect() -> None:
    """Let LEADER lead channel NAME; without it, the best placed replica."""


@channel.command()
@click.argument("names", nargs=-1)
@click.option("--apply", "applies", is_flag=True, help="Make the moves; without it they are only shown.")
@reaching
@forwards(_ACTIONS, "run_rebalance")
def rebalance() -> None:
    """Even out replicas and leaders over the nodes, of all channels or of NAMES. A dry run unless --apply is given."""
