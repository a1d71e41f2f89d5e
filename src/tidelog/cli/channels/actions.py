"""What the commands of `tidelog channel` do: reach a node, ask it, and say what came of it.

A refusal, or nobody who answers, is one sentence on stderr and exit code 1; with --json the error stands on stdout too,
with what a program decides by. What is wrong with the call itself is exit code 2, before anybody is asked.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import click

from tidelog.cli import reach as reaching
from tidelog.cli.channels.standing import min_isr_of, shortfall, state_of, state_words, takes_writes
from tidelog.cli.interrupts import run_until_told
from tidelog.cli.output import print_facts, print_json, print_table
from tidelog.cli.reach import EXIT_REFUSED, Reach, say
from tidelog.client import Client, ClientOptions, Created, connect
from tidelog.core.catalog.channel_config import FRACTION_PPM
from tidelog.errors import InvalidConfig, LogError
from tidelog.units import format_bytes, parse_bytes, parse_duration_us

_NONE: Final = "none"
_TOLD_MAX: Final = 10
"""Channels whose missing replicas are told one by one."""
_WAIT_STEP_S: Final = 0.2
_UNKNOWN: Final = "-"
_ADVICE: Final = {
    "unknown_channel": "`tidelog channel list` shows the channels",
    "config_mismatch": "change it with `tidelog channel alter`",
    "access_denied": "`tidelog ca issue NAME --operator` makes a certificate that may do everything",
}
"""What an operator can do with these commands about a refusal, by its code."""
_UNSURE: Final = "it may have happened all the same: look with `tidelog channel describe` before you ask again"

_AS_GIVEN: Final = (
    "replicated",
    "factor",
    "placement",
    "heartbeat_ms",
    "on_under_capacity",
    "min_isr",
    "fsync",
    "fsync_interval_ms",
    "bandwidth_class",
    "persistent",
)
"""Settings whose options need no reading."""
_ABOUT_COPIES: Final = frozenset(
    {"replicated", "factor", "placement", "pinned_nodes", "placement_metadata", "on_under_capacity", "min_isr"}
)
"""Settings after whose change a channel may have fewer copies than it was promised."""
_RETENTION: Final[tuple[tuple[str, str, Callable[[str], int]], ...]] = (
    ("max_age_ms", "retention_age", lambda text: parse_duration_us(text) // 1000),
    ("max_bytes", "retention_bytes", parse_bytes),
    ("max_events", "retention_events", int),
)

T = TypeVar("T")


# --- commands --------------------------------------------------------------------------------------


def run_create(names: Sequence[str], settings: dict[str, Any], *, wait: str | None, **options: Any) -> None:
    config = config_of(settings)
    wait_ms = None if wait is None else _wait_ms(wait)
    reach = reach_of(**options)

    async def create(client: Client) -> tuple[list[Created | LogError], list[str]]:
        outcomes = await client.create_channels(names, **config)
        created = [one.name for one in outcomes if isinstance(one, Created)]
        return outcomes, await _shortfalls(client, created, wait_ms=wait_ms)

    outcomes, lacks = ask(reach, create)
    failed = {name: one for name, one in zip(names, outcomes, strict=True) if isinstance(one, LogError)}
    created = [one for one in outcomes if isinstance(one, Created)]
    if reach.as_json:
        rows = [
            {"name": name, **(reaching.error_facts(one) if isinstance(one, LogError) else _created_facts(one))}
            for name, one in zip(names, outcomes, strict=True)
        ]
        print_json({"channels": rows})
    else:
        for one in created:
            print(f"{one.name} {'exists already' if one.existed else 'is created'}, channel id {one.channel_id}")
    for name, error in failed.items():
        say(f"{name}: {reaching.with_advice(error, _ADVICE, _UNSURE)}")
    for words in lacks[:_TOLD_MAX]:
        say(f"warning: {words}")
    if len(lacks) > _TOLD_MAX:
        say(f"warning: so do {len(lacks) - _TOLD_MAX} others; `tidelog channel list` shows them")
    if failed or (lacks and wait_ms is not None):
        raise click.exceptions.Exit(EXIT_REFUSED)


async def _shortfalls(client: Client, names: Sequence[str], *, wait_ms: int | None) -> list[str]:
    """What the channels lack of the copies they were promised; waits so long for those that take no writes yet."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + (wait_ms or 0) / 1000
    while names:
        try:
            channels = await client.describe_some(names)
            nodes = (await client.cluster())["nodes"] or []
        except LogError as error:
            # The channels are there; only the look at them failed.
            return [f"whether the channels take writes could not be seen: {error}"]
        if wait_ms is None:
            return [words for channel in channels if (words := shortfall(channel, nodes)) is not None]
        refusing = [channel for channel in channels if not takes_writes(channel)]
        if not refusing or loop.time() >= deadline_s:
            return [shortfall(channel, nodes) or f"{channel['name']} takes no writes" for channel in refusing]
        await asyncio.sleep(min(_WAIT_STEP_S, max(0.0, deadline_s - loop.time())))
    return []


def _wait_ms(text: str) -> int:
    try:
        return parse_duration_us(text) // 1000
    except InvalidConfig as error:
        raise click.UsageError(f"--wait {text!r}: {error}") from error


def _created_facts(created: Created) -> dict[str, Any]:
    return {"channel_id": created.channel_id, "existed": created.existed}


def run_list(**options: Any) -> None:
    reach = reach_of(**options)
    channels = ask(reach, lambda client: client.channels())
    if reach.as_json:
        print_json({"channels": [{**channel, "state": state_of(channel)} for channel in channels]})
        return
    if not channels:
        print("there are no channels; `tidelog channel create NAME` makes one")
        return
    columns = ["channel", "id", "leader", "epoch", "in sync", "replicas", "state", "kept"]
    left = frozenset({"channel", "leader", "in sync", "replicas", "state", "kept"})
    print_table("", columns, [_row(channel) for channel in channels], left=left)


def _row(channel: dict[str, Any]) -> list[str]:
    return [
        channel["name"],
        str(channel["channel_id"]),
        channel["leader"] or _UNKNOWN,
        str(channel["leader_epoch"]),
        " ".join(channel["isr"]) or _UNKNOWN,
        " ".join(channel["replicas"]),
        state_words(channel),
        _kept(channel["config"]),
    ]


def _kept(config: dict[str, Any]) -> str:
    retention = config["retention"]
    limits = []
    if retention["max_age_ms"] is not None:
        limits.append(f"{retention['max_age_ms'] / 1000:g} s")
    if retention["max_bytes"] is not None:
        limits.append(format_bytes(retention["max_bytes"]))
    if retention["max_events"] is not None:
        limits.append(f"{retention['max_events']} records")
    where = "disk" if config["persistent"] else "memory"
    return f"{where}, {' or '.join(limits) or 'for ever'}"


def run_describe(name: str, **options: Any) -> None:
    reach = reach_of(**options)

    async def describe(client: Client) -> dict[str, Any]:
        channel = await client.describe(name)
        try:
            found = await client.offsets(name, timeout_ms=min(reach.timeout_ms, 2_000))
            channel["offsets"] = {"log_start": found.log_start, "committed_end": found.committed_end}
            channel["cursors"] = await client.cursors(name, timeout_ms=min(reach.timeout_ms, 2_000))
        except LogError as error:
            # A channel without a leader is described all the same.
            channel["offsets"] = channel["cursors"] = None
            channel["problem"] = str(error)
        return channel

    channel = ask(reach, describe)
    if reach.as_json:
        print_json({**channel, "state": state_of(channel), "effective_min_isr": min_isr_of(channel)})
    else:
        _print_channel(channel)


def _print_channel(channel: dict[str, Any]) -> None:
    offsets = channel["offsets"]
    facts: dict[str, Any] = {
        "channel": channel["name"],
        "id": channel["channel_id"],
        "state": state_words(channel),
        "leader": channel["leader"] or _UNKNOWN,
        "in sync": " ".join(channel["isr"]) or _UNKNOWN,
        "replicas": " ".join(channel["replicas"]),
        "eligible": " ".join(channel["eligible"]) or _UNKNOWN,
        "leader epoch": channel["leader_epoch"],
        "channel epoch": channel["channel_epoch"],
        "offsets": f"{offsets['log_start']} to {offsets['committed_end']}" if offsets else channel["problem"],
    }
    for cursor, offset in (channel["cursors"] or {}).items():
        facts[f"cursor {cursor}"] = offset
    for election in channel["unclean"]:
        facts[f"unclean in epoch {election['leader_epoch']}"] = f"{election['leader']}, by {election['cause']}"
    config = channel["config"]
    facts |= {name: _shown(value) for name, value in config.items() if name != "retention"}
    if config["min_isr"] is None:
        facts["min_isr"] = f"{min_isr_of(channel)} (by the factor)"
    facts |= {f"retention {name}": _shown(value) for name, value in config["retention"].items()}
    print_facts(facts)


def _shown(value: Any) -> str:
    if value is None or value == []:
        return _UNKNOWN
    if isinstance(value, list):
        return " ".join("=".join(one) if isinstance(one, list) else str(one) for one in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def run_alter(
    name: str, settings: dict[str, Any], *, replicas: str | None, if_epoch: int | None, **options: Any
) -> None:
    config = config_of(settings)
    nodes = None if replicas is None else names_in(replicas)
    if not config and nodes is None:
        raise click.UsageError("give at least one setting to change, or --replicas")
    reach = reach_of(**options)

    async def alter(client: Client) -> tuple[dict[str, Any], list[str]]:
        changed = await client.alter(name, replicas=nodes, expected_channel_epoch=if_epoch, **config)
        concerns_copies = nodes is not None or not _ABOUT_COPIES.isdisjoint(config)
        return changed, await _shortfalls(client, [name], wait_ms=None) if concerns_copies else []

    channel, lacks = ask(reach, alter)
    _print_changed(reach, channel, f"{name} is altered")
    for words in lacks:
        say(f"warning: {words}")


def run_state(name: str, op: str, **options: Any) -> None:
    reach = reach_of(**options)

    async def change(client: Client) -> dict[str, Any]:
        if op == "pause":
            return await client.pause(name)
        if op == "resume":
            return await client.resume(name)
        return await client.set_readonly(name, op == "readonly")

    words = {"pause": "is paused", "resume": "goes on", "readonly": "is read-only", "writable": "is writable"}
    _print_changed(reach, ask(reach, change), f"{name} {words[op]}")


def run_delete(name: str, *, yes: bool, **options: Any) -> None:
    reach = reach_of(**options)
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("deleting a channel is for good; give --yes")
        click.confirm(f"Delete channel {name!r} with all of its records, for good?", abort=True, err=True)
    ask(reach, lambda client: client.delete(name))
    if reach.as_json:
        print_json({"deleted": name})
    else:
        print(f"{name} is deleted")


def run_elect(name: str, leader: str | None, *, unclean: bool, **options: Any) -> None:
    if unclean and leader is None:
        raise click.UsageError("an unclean election needs the replica that shall lead: name it")
    reach = reach_of(**options)
    channel = ask(reach, lambda client: client.elect(name, leader, unclean=unclean))
    _print_changed(reach, channel, f"{channel.get('leader') or 'nobody'} leads {name}")


def run_rebalance(names: Sequence[str], *, applies: bool, **options: Any) -> None:
    reach = reach_of(**options)
    plan = ask(reach, lambda client: client.rebalance(dry_run=not applies, channels=names or None))
    moves = plan.get("moves") or []
    if reach.as_json:
        print_json(plan)
        return
    for move in moves:
        print(_move_words(move))
    if not moves:
        print("the cluster is balanced; nothing has to move")
    elif not applies:
        print(f"{len(moves)} moves; nothing was done. Make them with --apply")
    else:
        print(f"{len(moves)} moves are under way; `tidelog channel list` shows how they come along")


def _move_words(move: dict[str, Any]) -> str:
    name = move.get("channel", move.get("channel_id"))
    if move.get("leader"):
        return f"{name}: {move['leader']} leads"
    add, remove = move.get("add"), move.get("remove")
    parts = [f"a replica on {add}"] if add else []
    parts += [f"none on {remove}"] if remove else []
    return f"{name}: {', '.join(parts)}"


def _print_changed(reach: Reach, channel: dict[str, Any], words: str) -> None:
    if reach.as_json:
        print_json({"channel": channel})
    else:
        print(words)


# --- reaching the cluster --------------------------------------------------------------------------


def ask(reach: Reach, question: Callable[[Client], Awaitable[T]]) -> T:
    """The answer of the cluster; a refusal is explained and ends the command."""

    async def work() -> T:
        async with await connected(reach) as client:
            return await question(client)

    try:
        return run_until_told(work())
    except InvalidConfig as error:
        raise click.UsageError(str(error)) from error
    except LogError as error:
        explain(error, as_json=reach.as_json)
        raise click.exceptions.Exit(EXIT_REFUSED) from error


async def connected(reach: Reach) -> Client:
    return await connect(
        reach.addresses,
        tls=reach.tls,
        insecure_dev=reach.tls is None,
        name="tidelog-cli",
        options=ClientOptions(timeout_ms=reach.timeout_ms),
    )


def explain(error: LogError, *, as_json: bool) -> None:
    reaching.explain(error, as_json=as_json, advice=_ADVICE, unsure=_UNSURE)


def reach_of(**options: Any) -> Reach:
    """The options of every command, checked."""
    return reaching.reach_of(**options, needs="; `tidelog ca issue NAME --client` or --operator writes the files")


# --- settings --------------------------------------------------------------------------------------


def config_of(settings: dict[str, Any]) -> dict[str, Any]:
    """What was given, by the names of `ChannelConfig`; everything that cannot be read is said at once."""
    problems: list[str] = []
    config = {name: settings[name] for name in _AS_GIVEN if settings[name] is not None}
    if settings["pinned_nodes"] is not None:
        config["pinned_nodes"] = names_in(settings["pinned_nodes"])
    if settings["leader_pinned"] is not None:
        config["leader_pinned"] = None if settings["leader_pinned"] == _NONE else settings["leader_pinned"]
    for name in ("subject", "queue_group"):
        if settings[name] is not None:
            config[name] = None if settings[name] == _NONE else settings[name]
    if settings["placement_metadata"]:
        pairs = [text.partition("=") for text in settings["placement_metadata"]]
        problems += [f"--placement-metadata {key!r} is no KEY=VALUE" for key, equals, _ in pairs if not equals]
        config["placement_metadata"] = sorted([key, value] for key, _, value in pairs)
    if (fraction := settings["replication_budget_fraction"]) is not None:
        # "not (... and ...)" refuses NaN too.
        if not 0 < fraction <= 1:
            problems.append("--replication-budget-fraction must be above 0 and at most 1")
        else:
            config["replication_budget_ppm"] = max(1, round(fraction * FRACTION_PPM))
    if settings["skip_threshold"] is not None:
        config["skip_threshold_bytes"] = _number("--skip-threshold", settings["skip_threshold"], parse_bytes, problems)
    retention: dict[str, int | None] = {}
    for name, option, read in _RETENTION:
        text = settings[option]
        if text is not None:
            flag = f"--{option.replace('_', '-')}"
            retention[name] = None if text == _NONE else _number(flag, text, read, problems)
    if retention:
        config["retention"] = retention
    if problems:
        raise click.UsageError("; ".join(problems))
    return config


def _number(flag: str, text: str, read: Callable[[str], int], problems: list[str]) -> int:
    try:
        return read(text)
    except (ValueError, InvalidConfig) as error:
        problems.append(f"{flag} {text!r}: {error}")
        return 0


def names_in(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
