"""Administration of channels: create, alter, pause, elect, delete, rebalance, and opening producers.

Carried out on the node that leads the metadata, because only that one knows what nodes report of themselves; every
other node passes the request on to it, with the caller's name. Everything becomes changes of the catalog, so
what counts is decided there, the same way on every node. The metadata leader's `metadata.channel_controller` finishes
what takes time: new replicas catch up, then those beyond the factor are removed.

What a caller must keep: `principal` comes from a certificate, never from a request.

CA1  A change of a channel is compare-and-set on its channel epoch. If the caller gave the epoch, a channel that has
     moved on is refused; if not, the change is decided anew, on the same channel and no other of its name.
CA2  Repeated requests are harmless: a change that is already made is answered as done, with `changed` False.
CA3  Replicas are given as those that are meant to be, in order, then those that leave once the first are in the ISR.
CA4  Callers without the right are refused before anything is proposed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from tidelog.cluster.clients.access import ADMIN, ALL_CHANNELS, WRITE, ClientAccess
from tidelog.cluster.clients.channel_limits import require_room
from tidelog.cluster.clients.producer_admin import close_producer
from tidelog.cluster.clients.requests import (
    AlterOperation,
    AlterRequest,
    WantedChannel,
    pass_on,
    read_alter,
    read_create,
    read_open_producer,
    read_passed_on,
    read_rebalance,
)
from tidelog.cluster.local_channels import LocalChannels
from tidelog.cluster.metadata.elections import is_compared
from tidelog.codecs.client_codec import (
    ALTER,
    CLOSE_PRODUCER,
    CREATE,
    GROUP,
    OPEN_PRODUCER,
    REBALANCE,
    channel_json,
    config_of_json,
    decode_answer,
    encode_json,
)
from tidelog.codecs.error_codec import error_json
from tidelog.core.catalog import (
    AlterChannel,
    Basis,
    Batch,
    Change,
    ChangeLeader,
    ChannelConfig,
    ChannelRecord,
    CreateChannel,
    DeleteChannel,
    NodeState,
    OpenProducer,
    PauseChannel,
    ResumeChannel,
    SetReadonly,
)
from tidelog.core.replication.election import first_leader, winner
from tidelog.core.replication.options import ReplicationOptions
from tidelog.core.replication.placement import Move, NodeLoad, Step, choose_replicas, plan_rebalance, preview
from tidelog.errors import (
    BadMessage,
    ConfigMismatch,
    FactorNotMet,
    InvalidConfig,
    LogError,
    NotElectable,
    NothingToChange,
    NotLeader,
    StaleChannelEpoch,
    StaleProducerEpoch,
    UnknownChannel,
    WaitTimedOut,
)

REQUEST_MS: Final = 10_000
RETRY_MS: Final = 25
"""Between two attempts while there is no metadata leader."""
TRIES_MAX: Final = 16
"""Tries for one change whose channel epoch keeps rising."""
BATCH_CHANNELS: Final = 100
"""The most channels created by one change of the catalog."""
_PLACED_PER_TURN: Final = 20
_TRY_AGAIN: Final = frozenset(
    ("not_leader", "leadership_moving", "too_many_proposals", "link_busy", "peer_unreachable", "proposal_lost")
)
"""Codes of temporary, definite errors that do not concern the request itself."""


class ChannelAdministration:
    def __init__(
        self,
        channels: LocalChannels,
        *,
        access: ClientAccess,
        rng: random.Random,
        groups: Callable[[dict[str, Any], str], Awaitable[dict[str, Any]]] | None = None,
        limits: ReplicationOptions | None = None,
    ) -> None:
        """`groups` handles requests about consumer groups."""
        self._channels = channels
        self._access = access
        self._rng = rng
        self._limits = limits or ReplicationOptions()
        self._deeds: dict[int, Callable[[dict[str, Any], str], Any]] = {
            CREATE: self._create,
            ALTER: self._alter,
            OPEN_PRODUCER: self._open_producer,
            REBALANCE: self._rebalance,
            CLOSE_PRODUCER: self._close_producer,
        }
        if groups is not None:
            self._deeds[GROUP] = groups

    async def ask(
        self, kind: int, request: dict[str, Any], *, principal: str, timeout_ms: int = REQUEST_MS
    ) -> dict[str, Any]:
        """Handle a request, here or by the metadata leader."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        while True:
            left_ms = max(1, int((deadline_s - loop.time()) * 1000))
            try:
                if self._channels.is_metadata_leader:
                    return await self._deeds[kind](request, principal)  # type: ignore[no-any-return]
                body = encode_json(pass_on(principal, request))
                found = decode_answer(await self._channels.ask_node(None, kind, body, timeout_ms=left_ms))
            except LogError as error:
                if error.code not in _TRY_AGAIN or not error.definite or loop.time() + RETRY_MS / 1000 >= deadline_s:
                    raise
                await asyncio.sleep(RETRY_MS / 1000)
                continue
            await self._catch_up(found, timeout_ms=max(1, int((deadline_s - loop.time()) * 1000)))
            return found

    async def _catch_up(self, found: dict[str, Any], *, timeout_ms: int) -> None:
        """Wait until the catalog here has the change, as the caller may read it here next. A timeout is no error."""
        index = found.get("index")
        if type(index) is int:
            try:
                await self._channels.wait_applied(index, timeout_ms=timeout_ms)
            except (WaitTimedOut, NotLeader):
                return

    async def carry_out(self, kind: int, body: dict[str, Any]) -> dict[str, Any]:
        """A request that another node relayed; only if this node leads the metadata."""
        passed = read_passed_on(body)
        if not self._channels.is_metadata_leader:
            raise NotLeader(leader=None)
        return await self._deeds[kind](passed.request, passed.principal)  # type: ignore[no-any-return]

    def _answer(self, **found: Any) -> dict[str, Any]:
        return {**found, "index": self._channels.catalog.applied_index}

    # --- creation ------------------------------------------------------------------------------------------

    async def _create(self, plain: dict[str, Any], principal: str) -> dict[str, Any]:
        wanted = read_create(plain)
        results: list[dict[str, Any] | None] = [None] * len(wanted)
        loads = dict(self._channels.node_loads())
        changes: list[tuple[int, CreateChannel]] = []
        for position, channel in enumerate(wanted):
            if position % _PLACED_PER_TURN == 0:
                await asyncio.sleep(0)  # heartbeats go on
            try:
                change = self._placed(channel, principal, loads, earlier=len(changes))
                if isinstance(change, ChannelRecord):
                    results[position] = {"channel_id": change.channel_id, "existed": True}
                else:
                    changes.append((position, change))
            except LogError as error:
                results[position] = {"error": error_json(error)}
        for start in range(0, len(changes), BATCH_CHANNELS):
            for position, result in await self._create_some(changes[start : start + BATCH_CHANNELS]):
                results[position] = result
        return self._answer(results=results)

    def _placed(
        self, wanted: WantedChannel, principal: str, loads: dict[str, NodeLoad], *, earlier: int
    ) -> CreateChannel | ChannelRecord:
        """The change that creates it, or the existing channel with the same config."""
        self._access.require(principal, wanted.name, ADMIN)
        config = config_of_json(wanted.config)
        existing = self._channels.catalog.channel(wanted.name)
        if existing is not None:
            factor = _same(existing, config).config.effective_factor
            if wanted.needs_factor and len(existing.replicas) < factor:
                raise FactorNotMet(channel=wanted.name, factor=factor, nodes=existing.replicas, problems=())
            return existing
        config.validate()
        placed = choose_replicas(
            channel=wanted.name,
            config=config,
            nodes=self._channels.catalog.nodes(),
            loads=loads,
            rtt_us=self._channels.proximity.rtt_us,
        )
        if wanted.needs_factor and len(placed.nodes) < placed.wanted:
            raise FactorNotMet(
                channel=wanted.name,
                factor=placed.wanted,
                nodes=placed.nodes,
                problems=tuple(placed.refused.values()),
            )
        require_room(self._channels.catalog, loads, placed.nodes, self._limits, placed=earlier)
        leader = first_leader(placed.nodes, pinned=config.leader_pinned, rng_fraction=self._rng.random())
        # So that the next channels of the same request are placed elsewhere.
        for node in placed.nodes:
            load = loads.get(node, NodeLoad())
            loads[node] = replace(load, replicas=load.replicas + 1, leaders=load.leaders + (node == leader))
        return CreateChannel(
            name=wanted.name, config=config, replicas=placed.nodes, leader=leader, at_ms=self._channels.wall_ms()
        )

    async def _create_some(self, changes: Sequence[tuple[int, CreateChannel]]) -> list[tuple[int, dict[str, Any]]]:
        """All in one change; if that is refused, one by one, so that each has its own answer."""
        if len(changes) > 1:
            try:
                await self._propose(Batch(changes=tuple(change for _, change in changes)))
                return [(position, self._created(change)) for position, change in changes]
            except LogError as error:
                if not error.definite or error.code in _TRY_AGAIN:
                    return [(position, {"error": error_json(error)}) for position, _ in changes]
        results = []
        for position, change in changes:
            try:
                await self._propose(change)
                results.append((position, self._created(change)))
            except LogError as error:
                results.append((position, self._refused(change, error)))
        return results

    def _created(self, change: CreateChannel) -> dict[str, Any]:
        channel = self._channels.catalog.channel(change.name)
        if channel is None:
            return {"error": error_json(UnknownChannel(channel=change.name))}  # it was deleted at once
        return {"channel_id": channel.channel_id, "existed": False}

    def _refused(self, change: CreateChannel, error: LogError) -> dict[str, Any]:
        """Another client may have created the same channel meanwhile: then it exists, as requested."""
        existing = self._channels.catalog.channel(change.name)
        if existing is None:
            return {"error": error_json(error)}
        try:
            return {"channel_id": _same(existing, change.config).channel_id, "existed": True}
        except ConfigMismatch as mismatch:
            return {"error": error_json(mismatch)}

    # --- changes of a channel that exists --------------------------------------------------------------------

    async def _alter(self, plain: dict[str, Any], principal: str) -> dict[str, Any]:
        request = read_alter(plain)
        self._access.require(principal, request.channel, ADMIN)
        if request.unclean:
            # No grant allows losing records: only an operator may.
            self._access.require_operator(principal, request.channel, "elect with loss")
        if request.operation is not AlterOperation.ELECT and (request.unclean or request.leader is not None):
            raise BadMessage(problem="a leader is named for an election only; leader_pinned is a setting")
        before = self._known(request.channel)
        changed = await self._compare_and_set(before, request, principal)
        after = self._channels.catalog.channel(before.channel_id)
        return self._answer(channel=None if after is None else channel_json(after), changed=changed)

    async def _compare_and_set(self, channel: ChannelRecord, request: AlterRequest, principal: str) -> bool:
        """Returns whether anything changed (CA1, CA2)."""
        expected = request.expected_channel_epoch
        for _ in range(TRIES_MAX):
            if expected is not None and expected != channel.channel_epoch:
                raise StaleChannelEpoch(channel=channel.name, expected=expected, current=channel.channel_epoch)
            change = self._change(channel, request, principal)
            if change is None:
                return False
            try:
                await self._propose(change)
            except LogError as error:
                if error.code == NothingToChange.code:
                    return False
                if error.code != StaleChannelEpoch.code or expected is not None:
                    raise
            else:
                return True
            found = self._channels.catalog.channel(channel.channel_id)
            if found is None:
                raise UnknownChannel(channel=channel.name)
            channel = found
        raise StaleChannelEpoch(channel=channel.name, expected=channel.channel_epoch, current=channel.channel_epoch)

    def _change(self, channel: ChannelRecord, request: AlterRequest, principal: str) -> Change | None:
        """The change to propose, decided on the channel as it is; None if nothing needs to change."""
        key = {"channel_id": channel.channel_id, "expected_channel_epoch": channel.channel_epoch}
        match request.operation:
            case AlterOperation.ALTER:
                return self._altered(channel, request)
            case AlterOperation.PAUSE:
                return None if channel.paused else PauseChannel(**key)
            case AlterOperation.RESUME:
                return ResumeChannel(**key) if channel.paused else None
            case AlterOperation.READONLY | AlterOperation.WRITABLE:
                readonly = request.operation is AlterOperation.READONLY
                return None if channel.readonly == readonly else SetReadonly(**key, readonly=readonly)
            case AlterOperation.DELETE:
                return DeleteChannel(**key, at_ms=self._channels.wall_ms())
            case AlterOperation.ELECT:
                return self._elected(channel, request, principal)
        raise AssertionError(request.operation)

    def _altered(self, channel: ChannelRecord, request: AlterRequest) -> AlterChannel | None:
        config = channel.config if request.config is None else config_of_json(request.config, channel.config)
        config.validate()
        meant = channel.replicas
        if request.replicas is not None:
            meant = request.replicas
            if len(meant) != config.effective_factor:
                problem = f"{len(meant)} replicas are named for a factor of {config.effective_factor}; make them equal"
                raise InvalidConfig(section="channel", problems=[problem])
        elif _places_differently(channel.config, config):
            meant = self._replaced(channel, config)
        replicas = _with_leaving(meant, channel)
        if config == channel.config and replicas == channel.replicas:
            return None
        return AlterChannel(
            channel_id=channel.channel_id,
            expected_channel_epoch=channel.channel_epoch,
            config=config if config != channel.config else None,
            replicas=replicas if replicas != channel.replicas else None,
        )

    def _replaced(self, channel: ChannelRecord, config: ChannelConfig) -> tuple[str, ...]:
        """The replicas under another config; those that are not lost for good stay if they can."""
        catalog = self._channels.catalog
        keep = [
            node
            for node in channel.replicas
            if (record := catalog.node(node)) is not None and record.state is not NodeState.REMOVED
        ]
        placed = choose_replicas(
            channel=channel.name,
            config=config,
            nodes=catalog.nodes(),
            loads=self._channels.node_loads(),
            rtt_us=self._channels.proximity.rtt_us,
            keep=keep,
            leader=channel.leader,
        )
        return placed.nodes

    def _elected(self, channel: ChannelRecord, request: AlterRequest, principal: str) -> ChangeLeader | None:
        catalog = self._channels.catalog
        leader = request.leader
        if request.unclean and leader is None:
            raise BadMessage(problem="an election with loss names the replica whose log is to count")
        if leader is None:
            leader = self._nearest(channel)
        if leader == channel.leader and catalog.has_live_leader(channel) and not request.unclean:
            return None
        is_holder = channel.member(leader) is not None or channel.eligible_member(leader) is not None
        if not request.unclean and is_holder and not is_compared(catalog, channel, leader):
            problem = (
                "its log has not been compared with the others' since it started; the cluster does that and elects by "
                "itself. To have its log count whatever it lacks, elect it with --unclean"
            )
            raise NotElectable(channel=channel.name, node=leader, problem=problem)
        record = catalog.node(leader)
        return ChangeLeader(
            channel_id=channel.channel_id,
            expected_channel_epoch=channel.channel_epoch,
            leader=leader,
            incarnation=0 if record is None else record.incarnation,
            at_ms=self._channels.wall_ms(),
            operator=self._answerable(request, principal) if request.unclean else "",
        )

    def _nearest(self, channel: ChannelRecord) -> str:
        """The leader that the metadata leader would choose (R8)."""
        candidates = self._channels.catalog.candidates(channel.channel_id)
        able = () if candidates.basis is Basis.REPORTS else candidates.nodes
        proximity = self._channels.proximity
        chosen = winner(
            able,
            pinned=channel.config.leader_pinned,
            median_rtt_us=lambda node: proximity.median_rtt_us(
                node, [other for other in channel.replicas if other != node]
            ),
        )
        if chosen is None:
            waiting = ", ".join(candidates.waiting_for) or "reports of its holders"
            problem = f"nobody can lead without loss now; the channel waits for {waiting}"
            raise NotElectable(channel=channel.name, node=channel.leader or "nobody", problem=problem)
        return chosen

    def _answerable(self, request: AlterRequest, principal: str) -> str:
        """The name that is recorded for ever: the certificate's; the request's only without authentication."""
        return principal if principal.startswith("operator:") else request.operator or principal

    # --- producers -----------------------------------------------------------------------------------------

    async def _open_producer(self, plain: dict[str, Any], principal: str) -> dict[str, Any]:
        """Compare-and-set on the producer's epoch: so the epoch in the answer belongs to this opener only."""
        request = read_open_producer(plain)
        self._access.require(principal, request.channel, WRITE)
        channel = self._known(request.channel)
        catalog = self._channels.catalog
        for _ in range(TRIES_MAX):
            known = catalog.producer_named(channel.channel_id, request.name)
            epoch = 0 if known is None else known.epoch
            change = OpenProducer(
                channel_id=channel.channel_id,
                name=request.name,
                owner=principal,
                at_ms=self._channels.wall_ms(),
                expected_epoch=epoch,
            )
            try:
                await self._propose(change)
            except LogError as error:
                if error.code != StaleProducerEpoch.code:
                    raise
                catalog = self._channels.catalog
                continue
            opened = self._channels.catalog.producer_named(channel.channel_id, request.name)
            if opened is None:
                raise UnknownChannel(channel=request.channel)  # deleted at once, and its producers with it
            return self._answer(producer_id=opened.producer_id, epoch=epoch + 1, channel_id=channel.channel_id)
        raise StaleProducerEpoch(producer=0, expected=0, current=0)

    async def _close_producer(self, plain: dict[str, Any], principal: str) -> dict[str, Any]:
        return await close_producer(self._channels, self._access, plain, principal, timeout_ms=REQUEST_MS)

    # --- rebalancing -----------------------------------------------------------------------------------------

    async def _rebalance(self, plain: dict[str, Any], principal: str) -> dict[str, Any]:
        request = read_rebalance(plain)
        if request.channels is None:
            self._access.require(principal, ALL_CHANNELS, ADMIN)
        for name in request.channels or ():
            self._access.require(principal, name, ADMIN)
        catalog = self._channels.catalog
        wanted = None if request.channels is None else {self._known(name).channel_id for name in request.channels}
        # The plan considers all channels, or it would even out some nodes at the cost of others. It runs in a thread,
        # since it may take long: records do not change, and moves on changed channels are refused.
        plan = await asyncio.to_thread(
            plan_rebalance, channels=catalog.channels(), nodes=catalog.nodes(), loads=self._channels.node_loads()
        )
        steps = [step for step in plan if wanted is None or step.channel_id in wanted]
        by_channel: dict[int, list[Step]] = {}
        for step in steps:
            by_channel.setdefault(step.channel_id, []).append(step)
        moves = [self._move_json(step) for step in steps]
        refused: dict[str, Any] = {}
        if not request.dry_run:
            for channel_id, own in by_channel.items():
                channel = catalog.channel(channel_id)
                if channel is None:
                    continue
                try:
                    await self._apply_steps(channel, own)
                except LogError as error:
                    if not error.definite:
                        raise
                    refused[channel.name] = error_json(error)
        return self._answer(moves=moves, applied=not request.dry_run, refused=refused)

    def _move_json(self, step: Step) -> dict[str, Any]:
        channel = self._channels.catalog.channel(step.channel_id)
        name = "" if channel is None else channel.name
        if isinstance(step, Move):
            return {"channel": name, "channel_id": step.channel_id, "add": step.add, "remove": step.remove}
        return {"channel": name, "channel_id": step.channel_id, "leader": step.to}

    async def _apply_steps(self, channel: ChannelRecord, steps: Sequence[Step]) -> None:
        """Leadership moves at once where it can; a new replica leads after it has caught up, by a later rebalance."""
        (after,) = preview([channel], steps)
        record = None if after.leader is None else self._channels.catalog.node(after.leader)
        if after.leader != channel.leader and after.leader in channel.isr_nodes and record is not None:
            await self._propose(
                ChangeLeader(
                    channel_id=channel.channel_id,
                    expected_channel_epoch=channel.channel_epoch,
                    leader=after.leader,
                    incarnation=record.incarnation,
                    at_ms=self._channels.wall_ms(),
                )
            )
            channel = self._channels.catalog.channel(channel.channel_id) or channel
        replicas = _with_leaving(after.replicas, channel)
        if replicas != channel.replicas:
            await self._propose(
                AlterChannel(
                    channel_id=channel.channel_id, expected_channel_epoch=channel.channel_epoch, replicas=replicas
                )
            )

    # --- both ------------------------------------------------------------------------------------------------

    def _known(self, name: str) -> ChannelRecord:
        channel = self._channels.catalog.channel(name)
        if channel is None:
            raise UnknownChannel(channel=name)
        return channel

    async def _propose(self, change: Change) -> None:
        await self._channels.propose(change, timeout_ms=REQUEST_MS)


def _same(channel: ChannelRecord, config: ChannelConfig) -> ChannelRecord:
    for setting in fields(config):
        if getattr(channel.config, setting.name) != getattr(config, setting.name):
            raise ConfigMismatch(channel=channel.name, setting=setting.name)
    return channel


def _places_differently(before: ChannelConfig, after: ChannelConfig) -> bool:
    return (before.effective_factor, before.placement, before.pinned_nodes, before.placement_metadata) != (
        after.effective_factor,
        after.placement,
        after.pinned_nodes,
        after.placement_metadata,
    )


def _with_leaving(meant: tuple[str, ...], channel: ChannelRecord) -> tuple[str, ...]:
    """The final replicas, then those that leave once the first are in the ISR (CA3)."""
    return (*meant, *(node for node in channel.replicas if node not in meant))
