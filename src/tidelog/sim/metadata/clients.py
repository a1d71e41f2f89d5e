"""Clients of the metadata: changes and linearizable reads at any node, as the real shell performs them.

A node that does not lead passes a change on to its leader, one hop; a read at a follower asks the leader for the index
and waits until it is applied. A client hears ok, a definite failure, or nothing in time: then its change may have
happened or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from tidelog.cluster.metadata.member import Done, ReadDone, RequestFailed, Result
from tidelog.core.catalog import (
    Catalog,
    Change,
    ChannelConfig,
    CreateChannel,
    DeleteChannel,
    ExpandIsr,
    NodeState,
    SetReadonly,
    ShrinkIsr,
    ShrinkReason,
    encode_change,
)
from tidelog.errors import LogError, OutcomeUnknown, ProposalLost
from tidelog.sim.metadata.node import ClientMessage, NodeWorld, SimNode

CHANNELS: Final = tuple(f"c{number}" for number in range(4))
PATIENCE_MS: Final = 3_000
OPEN_MAX: Final = 64
"""The most unanswered requests of all clients."""
_CONFIG: Final = ChannelConfig(factor=3)


@dataclass(frozen=True, slots=True)
class Ask(ClientMessage):
    """To the leader: propose this, or, without a change, tell the index of a read."""

    number: int
    change: Change | None


@dataclass(frozen=True, slots=True)
class ClientAnswer(ClientMessage):
    number: int
    result: Result | LogError


@dataclass(slots=True)
class _Request:
    number: int
    node: SimNode
    process: int
    change: Change | None
    channel: str
    floor: int
    """The newest state known to any client when it was asked."""
    then: Callable[[bool], None] | None


class Clients:
    def __init__(self, world: NodeWorld) -> None:
        self.world = world
        self._requests: dict[int, _Request] = {}
        self._number = 0
        self.acked = self.refused = self.served = 0

    # --- asking ------------------------------------------------------------------------------------------

    def act(self, rng: Random) -> None:
        """Start a random request at a random node."""
        nodes = [node for node in self.world.nodes.values() if node.core is not None and not node.paused]
        if not nodes or len(self._requests) >= OPEN_MAX:
            return
        node = rng.choice(nodes)
        assert node.core is not None
        catalog = node.core.catalog
        if rng.random() < 0.4 or catalog is None:
            self.read(node, rng.choice(CHANNELS))
        else:
            change = random_change(rng, catalog)
            if change is not None:
                self.change(node, change)

    def change(self, node: SimNode, change: Change, then: Callable[[bool], None] | None = None) -> None:
        """`then` gets whether it was applied and accepted, if there is an answer at all."""
        self._begin(node, change, "", then)

    def read(self, node: SimNode, channel: str, then: Callable[[bool], None] | None = None) -> None:
        self._begin(node, None, channel, then)

    def _begin(self, node: SimNode, change: Change | None, channel: str, then: Callable[[bool], None] | None) -> None:
        self._number += 1
        number = self._number
        floor = self.world.model.floor
        self._requests[number] = _Request(number, node, node.process, change, channel, floor, then)
        self.world.scheduler.after(PATIENCE_MS, lambda: self._give_up(number))
        node.do(lambda core: self._route(node, number, change))

    def _route(self, node: SimNode, number: int, change: Change | None) -> None:
        core = node.core
        assert core is not None
        if core.member is not None and core.member.raft.leading is not None:
            self._lead(node, change, lambda result: self._answered(number, result))
        elif core.leader is not None and core.leader != node.name:
            self.world.send(node, core.leader, Ask(number, change))
        else:
            self._end(number, taken=False)

    def _lead(self, node: SimNode, change: Change | None, tell: Callable[[Result | LogError], None]) -> None:
        core = node.core
        assert core is not None
        member = core.member
        if member is None:
            return
        token = core.new_token()
        last = member.raft.log.last_index
        try:
            if change is None:
                member.read(token)
            else:
                core.propose(change, token)
        except LogError as error:
            assert member.raft.log.last_index == last, "MM1: a change that was refused is in the log"
            tell(error)
        else:
            self._wait(node, token, tell)

    def _wait(self, node: SimNode, token: int, tell: Callable[[Result], None]) -> None:
        """As long as a client would wait."""
        node.tokens[token] = tell
        process = node.process

        def forget() -> bool:
            if node.process != process or node.tokens.pop(token, None) is None:
                return False
            assert node.core is not None
            assert node.core.member is not None
            node.core.member.forget(token)
            return True

        self.world.scheduler.after(PATIENCE_MS, forget)

    def arrived(self, node: SimNode, sender: str, message: ClientMessage) -> None:
        if isinstance(message, Ask):
            number = message.number
            self._lead(node, message.change, lambda result: self.world.send(node, sender, ClientAnswer(number, result)))
        elif isinstance(message, ClientAnswer):
            request = self._requests.get(message.number)
            if request is not None and request.node is node and request.process == node.process:
                self._answered(message.number, message.result)

    # --- answers -----------------------------------------------------------------------------------------

    def _answered(self, number: int, result: Result | LogError) -> None:
        request = self._requests.get(number)
        if request is None:
            return  # the client stopped waiting
        model, counters = self.world.model, self.world.counters
        if isinstance(result, ReadDone):
            self._follow(request, result.index)
            return
        if isinstance(result, Done):
            assert request.change is not None
            model.check_done(encode_change(request.change), result.applied, request.floor)
            model.floor = max(model.floor, result.applied.index)
            taken = result.applied.refusal is None
            self.acked += taken
            self.refused += not taken
            self._end(number, taken=taken)
            return
        error = result.error if isinstance(result, RequestFailed) else result
        if isinstance(error, ProposalLost):
            counters["proposal_lost"] += 1
            model.check_lost(error.index, error.term)
        elif isinstance(error, OutcomeUnknown):
            counters["outcome_unknown"] += 1
        counters["request_failed"] += 1
        self._end(number, taken=False)

    def _follow(self, request: _Request, index: int) -> None:
        """The leader has sent the index: wait until it is applied where the read was asked."""
        node = request.node
        core = node.core
        if core is None or core.member is None or request.process != node.process:
            self._end(request.number, taken=False)
            return
        if core.member.applied_index >= index:
            self._serve(request)
            return
        token = core.new_token()
        self.world.counters["read_waited"] += 1

        def served(_: Result) -> None:
            if request.number in self._requests:
                self._serve(request)

        core.member.wait_applied(index, token)
        self._wait(node, token, served)

    def _serve(self, request: _Request) -> None:
        core = request.node.core
        assert core is not None
        assert core.member is not None
        member = core.member
        channel = member.catalog.channel(request.channel)
        epoch = 0 if channel is None else channel.channel_epoch
        self.world.model.check_read(request.node.name, request.channel, epoch, member.applied_index, request.floor)
        self.world.counters["read"] += 1
        if member.raft.leading is None:
            self.world.counters["read_at_follower"] += 1
        self.served += 1
        self._end(request.number, taken=True)

    def _give_up(self, number: int) -> bool:
        request = self._requests.get(number)
        if request is None:
            return False
        if request.change is not None:
            self.world.counters["outcome_unknown"] += 1
        self._end(number, taken=False)
        return True

    def _end(self, number: int, *, taken: bool) -> None:
        request = self._requests.pop(number)
        if request.then is not None:
            request.then(taken)


def random_change(rng: Random, catalog: Catalog) -> Change | None:
    """A change of a channel, most often on the epoch that this catalog shows, sometimes on an older one."""
    active = [record.node for record in catalog.nodes() if record.state is NodeState.ACTIVE]
    channel = catalog.channel(rng.choice(CHANNELS))
    if channel is None:
        if not active:
            return None
        replicas = tuple(rng.sample(active, min(3, len(active))))
        name = rng.choice([name for name in CHANNELS if catalog.channel(name) is None])
        return CreateChannel(name=name, config=_CONFIG, replicas=replicas, leader=replicas[0], at_ms=1)
    channel_id, epoch = channel.channel_id, channel.channel_epoch
    if rng.random() < 0.1 and epoch > 1:
        epoch -= 1
    kind = rng.random()
    if kind < 0.03:
        return DeleteChannel(channel_id=channel_id, expected_channel_epoch=epoch, at_ms=1)
    others = [member.node for member in channel.isr if member.node != channel.leader]
    if kind < 0.25 and others:
        return ShrinkIsr(
            channel_id=channel_id,
            expected_channel_epoch=epoch,
            members=(rng.choice(others),),
            reason=ShrinkReason.LAGGING,
        )
    outside = [node for node in channel.replicas if channel.member(node) is None]
    if kind < 0.5 and outside:
        node = rng.choice(outside)
        record = catalog.node(node)
        incarnation = 1 if record is None else record.incarnation
        return ExpandIsr(
            channel_id=channel_id, expected_channel_epoch=epoch, member=node, incarnation=max(1, incarnation)
        )
    return SetReadonly(channel_id=channel_id, expected_channel_epoch=epoch, readonly=not channel.readonly)
