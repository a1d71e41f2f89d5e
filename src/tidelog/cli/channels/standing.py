"""Whether a channel takes writes, and if not, what to do about it: from its description alone.

The words for a state are those of `/channels` on a node's HTTP side, so that one search finds both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelog.codecs.client_codec import config_of_json


def factor_of(channel: dict[str, Any]) -> int:
    """The replicas that it should have; nodes of an older version do not say it, their config does."""
    found = channel.get("effective_factor")
    return found if isinstance(found, int) else config_of_json(channel["config"]).effective_factor


def min_isr_of(channel: dict[str, Any]) -> int:
    """The in-sync replicas below which it refuses writes."""
    found = channel.get("effective_min_isr")
    return found if isinstance(found, int) else config_of_json(channel["config"]).effective_min_isr


def state_of(channel: dict[str, Any]) -> str:
    """One word, worst first: ok, paused, leaderless, below_min_isr, under_replicated."""
    if channel["paused"]:
        return "paused"
    if channel["leader"] is None:
        return "leaderless"
    if len(channel["isr"]) < min_isr_of(channel):
        return "below_min_isr"
    return "ok" if len(channel["isr"]) >= factor_of(channel) else "under_replicated"


def state_words(channel: dict[str, Any]) -> str:
    """For people: everything that is not as it should be."""
    words = [word for word in ("paused", "readonly") if channel[word]]
    isr, min_isr = len(channel["isr"]), min_isr_of(channel)
    if channel["leader"] is None:
        words.append("no leader")
    elif isr < min_isr:
        words.append(f"below_min_isr, writes refused ({isr} of {min_isr} in sync)")
    elif isr < max(factor_of(channel), len(channel["replicas"])):
        words.append("under-replicated")
    if channel["unclean"]:
        words.append("records may be lost")
    return ", ".join(words) or "ok"


def takes_writes(channel: dict[str, Any]) -> bool:
    return state_of(channel) in ("ok", "under_replicated") and not channel["readonly"]


def shortfall(channel: dict[str, Any], nodes: Sequence[dict[str, Any]]) -> str | None:
    """What a new or altered channel lacks of the copies it was promised, in sentences; None when it lacks nothing."""
    name, factor, min_isr = channel["name"], factor_of(channel), min_isr_of(channel)
    isr, placed = len(channel["isr"]), len(channel["replicas"])
    if channel["leader"] is not None and isr >= factor:
        return None
    active = sum(node.get("state") == "active" for node in nodes)
    counted = f"{active} active node{'' if active == 1 else 's'}"
    has = f"{name} has {placed} of {factor} replicas, {isr} in sync, on a cluster of {counted}"
    if channel["leader"] is None:
        return f"{has}; nobody leads it, so writes are refused until one of {', '.join(channel['replicas'])} is back"
    if isr >= min_isr:
        rest = "gets the other replicas when more nodes are active" if active < factor else "the other replicas follow"
        return f"{has}; it takes writes (min_isr is {min_isr}) and {rest}"
    if active >= factor:
        return f"{has}; writes are refused until {min_isr} replicas are in sync, which follow by themselves"
    fits = max(1, min(factor, active))
    return (
        f"{has}; writes are refused until {min_isr} replicas are in sync (min_isr is {min_isr}): start more nodes, and"
        f" the replicas follow by themselves, or use `tidelog channel alter {name} --factor {fits}"
        f"{f' --min-isr {fits}' if channel['config'].get('min_isr') is not None else ''}`"
    )
