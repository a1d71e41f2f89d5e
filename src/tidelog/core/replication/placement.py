"""Where the replicas of a channel are placed, and how they move until the load is even.

Decided by the metadata leader from the catalog, from what nodes report of themselves and from measured distances; it
takes effect as a change of the catalog. A score is a product of axes in (0, 1]; an axis that is not configured, or not
known of any node, is 1. What a node must have (active, the scope, the strict chain, free disk) is no axis but a
condition, and if a node fails it the reason is given in words. `docs/protocols/placement.md` has the table.

What a caller must keep: `loads` are of the nodes' present incarnations; `keep` are replicas that are not lost for good.

PL1  Equal facts give an equal placement; ties go to the smaller node id. Only the order of `keep` matters.
PL2  Replicas go to as many hosts as there are among the candidates, before any score. A node without a host is its own.
PL3  A node that fails a condition is never chosen, and its reason is always given.
PL4  Fewer candidates than the factor: all of them. None, or a pinned node that cannot be chosen: `PlacementRefused`.
PL5  A plan to rebalance never lessens the number of hosts of a channel, nor moves a pinned replica, nor moves a replica
     to a node that `choose_replicas` would not choose or prefers less.
PL6  Applying a whole plan gives a cluster for which the plan is empty.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from tidelog.core.catalog.channel_config import (
    COLOCATE_WITH,
    COLOCATE_WITH_STRICT,
    INTENT,
    ChannelConfig,
    Placement,
)
from tidelog.core.catalog.records import ChannelRecord, Member, NodeRecord, NodeState
from tidelog.errors import PlacementRefused

SCOPE_PREFIX: Final = "scope:"
INTENT_PREFIX: Final = "intent:"
INTENT_OTHER: Final = 0.5
"""The factor of a node that does not declare the channel's intent. Soft: a full set of replicas matters more than
intent."""
COLOCATION_OTHER: Final = 0.7
"""The factor of a node that does not hold the chain of `metadata.colocate-with`."""
FREE_BYTES_HALF: Final = 10**12
"""With this much free disk a node scores one half on that axis."""
NEAR_MS_HALF: Final = 10
"""A node this far from the others scores one half. Distances count in whole milliseconds: below, they are noise."""

RttUs: TypeAlias = Callable[[str, str], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """What a node reported of itself."""

    replicas: int = 0
    leaders: int = 0
    free_bytes: int = 0
    capacity_bytes: int = 0
    """0: not known, and then free_bytes means nothing."""
    chains: Collection[int] = frozenset()
    """Ids of channels of which it holds every retained, committed record."""
    partial: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """(held, retained) records of channels that it holds in part, where known. For messages only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedReplicas:
    """The chosen nodes, in the order in which they were chosen."""

    nodes: tuple[str, ...]
    wanted: int
    """The effective factor; more than `nodes` means under-replicated."""
    reasons: Mapping[str, str]
    """Reasons by chosen node, in words."""
    refused: Mapping[str, str]
    """Reasons by node that could not be chosen, in words."""


def chain_id(text: str) -> int:
    """The channel id of a chain: `causal:` tags and colocation metadata write it as 16 hex digits."""
    return int(text, 16)


def chain_text(channel_id: int) -> str:
    return f"{channel_id:016x}"


def choose_replicas(
    *,
    channel: str,
    config: ChannelConfig,
    nodes: Iterable[NodeRecord],
    loads: Mapping[str, NodeLoad],
    rtt_us: RttUs,
    keep: Sequence[str] = (),
    leader: str | None = None,
    avoid: Mapping[str, str] | None = None,
) -> PlacedReplicas:
    """Choose the replicas of a channel that is new, has lost some (`keep` are left), or gets another factor.

    `avoid` has nodes that must not be chosen now, with the reason ("withdrew from it: its disk is full"). With more in
    `keep` than the factor, the best of them stay, the leader among them.
    """
    records = {record.node: record for record in nodes}
    wants = _Wants.of(config)
    refused = {}
    for node, record in sorted(records.items()):
        problem = _problem(record, wants, loads.get(node), (avoid or {}).get(node))
        if problem is not None:
            refused[node] = problem
    if config.placement is Placement.PINNED:
        return _choose_pinned(channel, config, records, refused, keep)
    choice = _Choice(records, wants, loads, rtt_us, [node for node in records if node not in refused])
    factor = config.effective_factor
    if len(keep) > factor:
        choice.pool = {node for node in choice.pool if node in keep}
        if leader is not None and leader in keep:
            choice.take(leader, "leads")
        choice.fill(factor)
        for node in [node for node in keep if node not in choice.chosen][: factor - len(choice.chosen)]:
            choice.take(node, "holds it already")
    else:
        for node in keep:
            choice.take(node, "holds it already")
        if config.leader_pinned in choice.pool and len(choice.chosen) < factor:
            choice.take(config.leader_pinned, "is the pinned leader")
        choice.fill(factor)
    if not choice.chosen:
        raise PlacementRefused(channel=channel, problems=list(refused.values()) or ["there are no nodes"])
    return PlacedReplicas(
        nodes=tuple(choice.chosen),
        wanted=factor,
        reasons=choice.reasons,
        refused={node: words for node, words in refused.items() if node not in choice.chosen},
    )


def _choose_pinned(
    channel: str,
    config: ChannelConfig,
    records: Mapping[str, NodeRecord],
    refused: Mapping[str, str],
    keep: Sequence[str],
) -> PlacedReplicas:
    """The literal list. An operator chose it, so a node that cannot be used is reported, not left out (PL4)."""
    problems = []
    for node in config.pinned_nodes:
        if node in keep:
            continue
        if node not in records:
            problems.append(f"there is no node {node}")
        elif node in refused:
            problems.append(refused[node])
    if problems:
        raise PlacementRefused(channel=channel, problems=problems)
    return PlacedReplicas(
        nodes=config.pinned_nodes,
        wanted=config.effective_factor,
        reasons={node: f"{node} is named by the placement" for node in config.pinned_nodes},
        refused={},
    )


# --- conditions and axes -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wants:
    """What a config requires of nodes."""

    intent: str | None
    near_chain: int | None
    with_chain: int | None
    scopes: frozenset[str]
    disk: bool
    literal: bool
    """Pinned: the list is the placement, so only the node's presence counts."""

    @classmethod
    def of(cls, config: ChannelConfig) -> _Wants:
        metadata = dict(config.placement_metadata)
        near, strict = metadata.get(COLOCATE_WITH), metadata.get(COLOCATE_WITH_STRICT)
        return cls(
            intent=metadata.get(INTENT),
            near_chain=chain_id(near) if near is not None else None,
            with_chain=chain_id(strict) if strict is not None else None,
            scopes=frozenset(key for key in metadata if key.startswith(SCOPE_PREFIX)),
            disk=config.persistent,
            literal=config.placement is Placement.PINNED,
        )


def _problem(record: NodeRecord, wants: _Wants, load: NodeLoad | None, avoid: str | None = None) -> str | None:
    """Why the node cannot be chosen, in words (PL3); None if it can."""
    if record.state is not NodeState.ACTIVE:
        return f"{record.node} is {record.state.value}"
    if avoid is not None:
        return f"{record.node} {avoid}"
    if wants.literal:
        return None
    if wants.scopes and wants.scopes.isdisjoint(record.tags):
        return f"{record.node} has none of the scopes {', '.join(sorted(wants.scopes))}"
    if wants.with_chain is not None and (load is None or wants.with_chain not in load.chains):
        return f"{record.node} {_coverage(wants.with_chain, load)}"
    if wants.disk and load is not None and load.capacity_bytes > 0 and load.free_bytes <= 0:
        return f"{record.node} has no free disk"
    return None


def _coverage(channel_id: int, load: NodeLoad | None) -> str:
    chain = f"chain {chain_text(channel_id)}"
    if load is not None and channel_id in load.partial:
        held, retained = load.partial[channel_id]
        return f"holds {held} of {retained} records of {chain}, and all are needed"
    return f"does not hold all records of {chain}"


def _preference(record: NodeRecord, wants: _Wants, load: NodeLoad | None) -> dict[str, float]:
    """The axes that do not change as replicas come and go."""
    axes = {}
    if wants.intent is not None:
        axes["intent"] = 1.0 if INTENT_PREFIX + wants.intent in record.tags else INTENT_OTHER
    if wants.near_chain is not None:
        axes["colocation"] = 1.0 if load is not None and wants.near_chain in load.chains else COLOCATION_OTHER
    return axes


def _product(axes: Mapping[str, float]) -> float:
    result = 1.0
    for value in axes.values():
        result *= value
    return result


def _free(load: NodeLoad | None) -> float | None:
    if load is None or load.capacity_bytes <= 0:
        return None
    return load.free_bytes / (load.free_bytes + FREE_BYTES_HALF)


def _host(record: NodeRecord | None, node: str) -> tuple[str, str]:
    """A node without a known host counts as a host of its own."""
    return ("host", record.host) if record is not None and record.host else ("node", node)


class _Choice:
    """Replicas chosen one after the other, each depending on those before it."""

    def __init__(
        self,
        records: Mapping[str, NodeRecord],
        wants: _Wants,
        loads: Mapping[str, NodeLoad],
        rtt_us: RttUs,
        pool: Iterable[str],
    ) -> None:
        self.pool = set(pool)
        self.chosen: list[str] = []
        self.reasons: dict[str, str] = {}
        self._records = records
        self._rtt_us = rtt_us
        self._axes = {node: _preference(records[node], wants, loads.get(node)) for node in self.pool}
        held = {node: loads[node].replicas if node in loads else 0 for node in self.pool}
        fewest = min(held.values(), default=0)
        free = {node: _free(loads.get(node)) if wants.disk else None for node in self.pool}
        # A node without reports counts as the worst of the others: no node is chosen for being unknown.
        least = min((value for value in free.values() if value is not None), default=1.0)
        for node, axes in self._axes.items():
            known = free[node]
            axes["free"] = least if known is None else known
            axes["load"] = (1 + fewest) / (1 + held[node])

    def take(self, node: str, words: str) -> None:
        if node not in self.chosen:
            self.chosen.append(node)
            self.pool.discard(node)
            self.reasons[node] = f"{node} {words}"

    def fill(self, count: int) -> None:
        """Choose from the pool until there are so many, or the pool is empty."""
        while self.pool and len(self.chosen) < count:
            hosts = Counter(_host(self._records.get(node), node) for node in self.chosen)
            near = self._nearness()
            scores = {node: _product(self._axes[node]) * near[node] for node in self.pool}
            best = min(self.pool, key=lambda node: (hosts[_host(self._records[node], node)], -scores[node], node))
            axes = self._axes[best] | ({"near": near[best]} if self.chosen else {})
            words = ", ".join(f"{name} {value:.2f}" for name, value in axes.items())
            host = self._records[best].host or "unknown"
            self.take(best, f"scores {scores[best]:.3f} ({words}), host {host}")

    def _nearness(self) -> dict[str, float]:
        """The distance of each node of the pool to those chosen: the mean over what is measured."""
        measured = {}
        for node in self.pool:
            known = [rtt for other in self.chosen if (rtt := self._rtt_us(node, other)) is not None]
            if known:
                measured[node] = NEAR_MS_HALF / (NEAR_MS_HALF + sum(known) // (1_000 * len(known)))
        furthest = min(measured.values(), default=1.0)
        return {node: measured.get(node, furthest) for node in self.pool}


# --- rebalancing -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Move a replica: `add` catches up first; if `remove` leads, leadership moves to `add`; then `remove` is
    removed."""

    channel_id: int
    add: str
    remove: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveLeader:
    """Leadership moves to `to`, once that replica is in sync."""

    channel_id: int
    to: str


Step: TypeAlias = Move | MoveLeader

MOVES_MAX: Final = 256


def plan_rebalance(
    *,
    channels: Iterable[ChannelRecord],
    nodes: Iterable[NodeRecord],
    loads: Mapping[str, NodeLoad],
    moves_max: int = MOVES_MAX,
) -> list[Step]:
    """The moves after which active nodes hold and lead equally many channels, as far as hosts, pins and conditions
    allow.

    Nothing is changed: for dry runs, show it. A plan with `moves_max` moves is a part of the way; ask again once it is
    carried out. Counts are taken from the channels, not from the reports of nodes, which may be late.
    """
    assert moves_max > 0
    plan = _Plan(channels, nodes, loads, moves_max)
    plan.spread_hosts()
    plan.even_out(plan.held, plan.replica_fits, plan.move_replica)
    while plan.spread_hosts():  # a shift may have freed a host that a better node is on
        plan.even_out(plan.held, plan.replica_fits, plan.move_replica)
    plan.even_out(plan.led, plan.leader_fits, plan.move_leader)
    return plan.steps()


def preview(channels: Iterable[ChannelRecord], steps: Iterable[Step]) -> list[ChannelRecord]:
    """The channels as they will be once the plan is carried out, for display: epochs are those of now."""
    after = {channel.channel_id: channel for channel in channels}
    for step in steps:
        channel = after[step.channel_id]
        if isinstance(step, MoveLeader):
            after[step.channel_id] = replace(channel, leader=step.to)
            continue
        joined = Member(node=step.add, incarnation=0, keeps=channel.config.keeps)
        stay = tuple(member for member in channel.isr if member.node != step.remove)
        after[step.channel_id] = replace(
            channel,
            replicas=tuple(step.add if node == step.remove else node for node in channel.replicas),
            isr=(*stay, joined),
            leader=step.add if channel.leader == step.remove else channel.leader,
        )
    return list(after.values())


class _Moving:
    """One channel during the planning."""

    __slots__ = ("fixed", "leader", "record", "replicas", "wants")

    def __init__(self, record: ChannelRecord, active: Collection[str]) -> None:
        self.record = record
        self.wants = _Wants.of(record.config)
        self.replicas = list(record.replicas)
        self.leader = record.leader
        # A channel without a live leader cannot bring a new replica up to date; one with too many is being moved.
        self.fixed = (
            record.paused or record.leader not in active or len(record.replicas) > record.config.effective_factor
        )


class _Plan:
    """Moves are made on copies; the plan is the difference in the end, so nothing moves twice."""

    def __init__(
        self,
        channels: Iterable[ChannelRecord],
        nodes: Iterable[NodeRecord],
        loads: Mapping[str, NodeLoad],
        moves_max: int,
    ) -> None:
        self._records = {record.node: record for record in nodes}
        self._loads = loads
        self._left = moves_max
        self.active = sorted(node for node, record in self._records.items() if record.state is NodeState.ACTIVE)
        ordered = sorted(channels, key=lambda channel: channel.channel_id)
        self._channels = {channel.channel_id: _Moving(channel, self.active) for channel in ordered}
        self.held: dict[str, list[int]] = {node: [] for node in self.active}
        self.led: dict[str, list[int]] = {node: [] for node in self.active}
        for channel in ordered:
            for node in channel.replicas:
                if node in self.held:
                    self.held[node].append(channel.channel_id)
            if channel.leader in self.led:
                self.led[channel.leader].append(channel.channel_id)

    # --- the search ----------------------------------------------------------------------------------

    def spread_hosts(self) -> bool:
        """Spread two replicas on one host to another host that could take one, whatever the counts. True if any
        moved."""
        left = self._left
        hosts_max = len({_host(record, node) for node, record in self._records.items()})
        for channel_id, channel in self._channels.items():
            while self._left > 0 and self._hosts_of(channel) < min(hosts_max, len(channel.replicas)):
                counts = _lengths(self.held)
                wider = [
                    (channel.leader == remove, -counts[remove], remove, counts[add], add)
                    for remove in channel.replicas
                    if remove in counts
                    for add in self.active
                    if self._may_move(channel, remove, add) and self._hosts_gained(channel, remove, add) > 0
                ]
                if not wider:
                    break
                _, _, remove, _, add = min(wider)
                self.move_replica(channel_id, remove, add)
        return self._left < left

    def even_out(
        self,
        held: Mapping[str, list[int]],
        fits: Callable[[int, str, str], bool],
        move: Callable[[int, str, str], None],
    ) -> None:
        """Shift a channel from a node with more to one with at least two fewer, through others where there is no direct
        way.

        Each shift lowers the sum of the squares of the counts, so this ends; and it ends only when no shift is left, so
        that a second plan would find none (PL6).
        """
        closed: set[tuple[str, str]] = set()
        """Pairs of nodes between which no channel fits: looked at again only for channels that have moved since."""

        def edge(source: str, target: str) -> int | None:
            if (source, target) in closed:
                return None
            found = None
            for channel_id in held[source]:
                if fits(channel_id, source, target):
                    if held is self.led or self._channels[channel_id].leader != source:
                        return channel_id
                    found = channel_id if found is None else found  # better one that needs no new leader
            if found is None:
                closed.add((source, target))
            return found

        while (path := _shift(_lengths(held), edge)) is not None and len(path) <= self._left:
            # The channels of a path differ: each is on its first node and not on its second.
            for channel_id, source, target in path:
                move(channel_id, source, target)
            for channel_id, _, _ in path:
                closed -= {pair for pair in closed if channel_id in held[pair[0]] and fits(channel_id, *pair)}

    # --- replicas ------------------------------------------------------------------------------------

    def replica_fits(self, channel_id: int, source: str, target: str) -> bool:
        channel = self._channels[channel_id]
        return self._may_move(channel, source, target) and self._hosts_gained(channel, source, target) >= 0

    def move_replica(self, channel_id: int, remove: str, add: str) -> None:
        channel = self._channels[channel_id]
        channel.replicas[channel.replicas.index(remove)] = add
        self.held[remove].remove(channel_id)
        insort(self.held[add], channel_id)
        self._left -= 1
        if channel.leader == remove:
            self._lead(channel, channel_id, add)

    def _may_move(self, channel: _Moving, remove: str, add: str) -> bool:
        """PL5, except for the hosts."""
        if channel.fixed or channel.wants.literal or add in channel.replicas:
            return False
        pinned = channel.record.config.leader_pinned
        if remove == pinned or (remove == channel.leader and pinned in channel.replicas):
            return False  # who leads until the pinned leader is back stays where it is
        record, load = self._records[add], self._loads.get(add)
        if _problem(record, channel.wants, load) is not None:
            return False
        before = _preference(self._records[remove], channel.wants, self._loads.get(remove))
        return _product(_preference(record, channel.wants, load)) >= _product(before)

    def _hosts_of(self, channel: _Moving) -> int:
        return len({_host(self._records.get(node), node) for node in channel.replicas})

    def _hosts_gained(self, channel: _Moving, remove: str, add: str) -> int:
        hosts = {node: _host(self._records.get(node), node) for node in (*channel.replicas, add)}
        after = {host for node, host in hosts.items() if node != remove}
        return len(after) - len({hosts[node] for node in channel.replicas})

    # --- leaders -------------------------------------------------------------------------------------

    def leader_fits(self, channel_id: int, source: str, target: str) -> bool:
        channel = self._channels[channel_id]
        if channel.fixed or target not in channel.replicas or channel.record.config.leader_pinned in channel.replicas:
            return False
        # A replica that is behind cannot lead; one that only comes with this plan will have caught up.
        return channel.leader == source and (
            target not in channel.record.replicas or channel.record.member(target) is not None
        )

    def move_leader(self, channel_id: int, _source: str, target: str) -> None:
        self._left -= 1
        self._lead(self._channels[channel_id], channel_id, target)

    def _lead(self, channel: _Moving, channel_id: int, leader: str) -> None:
        if channel.leader in self.led:
            self.led[channel.leader].remove(channel_id)
        insort(self.led[leader], channel_id)
        channel.leader = leader

    # --- the outcome ---------------------------------------------------------------------------------

    def steps(self) -> list[Step]:
        return [step for channel_id, channel in self._channels.items() for step in _difference(channel_id, channel)]


def _lengths(held: Mapping[str, list[int]]) -> dict[str, int]:
    return {node: len(ids) for node, ids in held.items()}


_Way: TypeAlias = list[tuple[int, str, str]]
_Edge: TypeAlias = Callable[[str, str], int | None]


def _shift(counts: dict[str, int], edge: _Edge) -> _Way | None:
    """The channels to move from where to where, so that the counts of two nodes come closer; None if none can."""
    fewest = min(counts.values(), default=0)
    for source in sorted(counts, key=lambda node: (-counts[node], node)):
        if counts[source] - fewest < 2:
            return None
        ways = _ways_from(source, counts, edge)
        ends = [node for node in ways if counts[source] - counts[node] >= 2]
        if ends:
            return ways[min(ends, key=lambda node: (counts[node], len(ways[node]), node))]
    return None


def _ways_from(source: str, counts: dict[str, int], edge: _Edge) -> dict[str, _Way]:
    """The shortest way to every node that can be reached; the search ends early at one of the least loaded."""
    ways: dict[str, _Way] = {source: []}
    waiting = [source]
    fewest = min(counts.values())
    targets = sorted(counts, key=lambda node: (counts[node], node))
    for node in waiting:
        for target in targets:
            if target not in ways and (channel_id := edge(node, target)) is not None:
                ways[target] = [*ways[node], (channel_id, node, target)]
                waiting.append(target)
                if counts[target] == fewest:
                    return ways
    return ways


def _difference(channel_id: int, channel: _Moving) -> list[Step]:
    """The moves from the present state to the planned one, without any that another undoes."""
    record, leader = channel.record, channel.leader
    added = [node for node in channel.replicas if node not in record.replicas]
    removed = [node for node in record.replicas if node not in channel.replicas]
    # Where the leader's replica moves, leadership moves with it: to the right node at once, if that one is new.
    added.sort(key=lambda node: (node != leader, node))
    removed.sort(key=lambda node: (node != record.leader, node))
    moves: list[Step] = [
        Move(channel_id=channel_id, add=add, remove=remove) for add, remove in zip(added, removed, strict=True)
    ]
    if leader is None or leader == record.leader:
        return moves
    if leader in record.replicas:
        return [MoveLeader(channel_id=channel_id, to=leader), *moves]
    if record.leader in removed:
        return moves
    return [*moves, MoveLeader(channel_id=channel_id, to=leader)]
