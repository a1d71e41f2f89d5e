"""Which candidate leads a channel (R8).

The catalog says which replicas *may* lead (`Catalog.candidates`: in sync, trusted, active); the metadata leader chooses
one of them here, always in the same way from the same facts. The proposal names the winner and takes effect through
Raft: no replica becomes leader by the outcome of this function alone.

What a caller must keep: candidates are healthy. A node that must not lead now (its disk is full, its channel is wedged)
is left out before.

EL1  The outcome depends on the set of candidates, the pin and the distances, and on no order of any of them.
EL2  The pinned leader wins whenever it is a candidate.
EL3  Else the lowest median round trip to the other live replicas wins, unknown distances last, then the smallest id.
EL5  Before that, logs are compared: only a replica with the largest (last epoch, log end) of those that can lead, and
     whose log reaches every committed end that any answering replica knows, is a candidate. A replica that holds less
     than it once did, according to any other, is no candidate while a replica has not answered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from tidelog.core.replication.messages import LogFacts


def winner(
    candidates: Collection[str], *, pinned: str | None, median_rtt_us: Callable[[str], int | None]
) -> str | None:
    """The winner (EL1 to EL3); None without candidates."""
    if pinned is not None and pinned in candidates:
        return pinned

    def rank(node: str) -> tuple[bool, int, str]:
        rtt_us = median_rtt_us(node)
        return rtt_us is None, rtt_us or 0, node

    return min(candidates, key=rank, default=None)


def most_complete(able: Collection[str], facts: Mapping[str, LogFacts], *, all_answered: bool) -> list[str]:
    """The replicas with the longest log among those that can lead and have answered, by name (EL5); empty if all are
    known to lack something. `facts` are the answers of all replicas that gave one, `all_answered` says that none is
    missing."""
    committed_end = max((one.memory.committed_end for one in facts.values()), default=0)
    sound = [
        node
        for node in able
        if node in facts
        and facts[node].log_end >= committed_end
        and (all_answered or facts[node].log_end >= _remembered_end(node, facts))
    ]
    longest = max(((facts[node].last_epoch, facts[node].log_end) for node in sound), default=(0, 0))
    return sorted(node for node in sound if (facts[node].last_epoch, facts[node].log_end) == longest)


def _remembered_end(node: str, facts: Mapping[str, LogFacts]) -> int:
    """How far a node's log went, as any replica remembers it of the epoch in which it ends, or a later one."""
    last_epoch = facts[node].last_epoch
    ends = (dict(one.memory.ends).get(node, 0) for one in facts.values() if one.memory.epoch >= last_epoch)
    return max(ends, default=0)


def first_leader(replicas: Sequence[str], *, pinned: str | None, rng_fraction: float) -> str:
    """The first leader of a new channel: drawn, so that many new channels are led by many nodes (R8).

    All logs are empty, so every replica holds everything. `rng_fraction` comes from the caller's generator, in [0, 1).
    """
    assert replicas, "a channel has at least one replica"
    assert 0 <= rng_fraction < 1, "a fraction of a generator is in [0, 1)"
    if pinned is not None and pinned in replicas:
        return pinned
    return sorted(replicas)[int(rng_fraction * len(replicas))]


def hand_back_to(*, leader: str | None, pinned: str | None, candidates: Collection[str]) -> str | None:
    """The pinned leader, if it could lead and another node does: leadership is then handed back to it gracefully."""
    if pinned is None or leader is None or leader == pinned or pinned not in candidates:
        return None
    return pinned
