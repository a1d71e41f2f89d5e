"""Feeds a node's core with messages and time, and carries out its output.

All decisions are `NodeCore`'s. Messages go to the links, orders to the writers' threads, results to the futures of the
requests that wait for them; one timer wakes the core. `cluster.node.process` builds the parts and sets them here.

What a caller must keep: set `storage`, `pool`, `core` and `transport` before anything arrives; call `end_turn` after
the messages of a link's turn were passed in. Everything runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from tidelog.cluster.metadata.member import Output, RequestFailed, Result
from tidelog.cluster.metadata.writer import MetadataWriter
from tidelog.cluster.node.addresses import PeerAddresses
from tidelog.cluster.node.core import NodeCore
from tidelog.cluster.node.store_thread import StoreThread
from tidelog.cluster.replication.orders import StorageResult
from tidelog.cluster.replication.replica import ChannelReplica
from tidelog.cluster.replication.replicas import ReplicasOutput
from tidelog.cluster.replication.transport import Messages, ReplicationTransport, ask_again
from tidelog.codecs.node_codec import decode_node_messages
from tidelog.core.catalog import Applied
from tidelog.core.raft import Snapshot
from tidelog.errors import BadMessage, WaitTimedOut
from tidelog.storage.log.writer import session_clock_us
from tidelog.storage.store.channel_logs import ChannelLogs
from tidelog.transports.link.link import Link
from tidelog.transports.link.pool import LinkPool

_LOOK_MS: Final = 5
_US_PER_S: Final = 1_000_000
_TRANSFERS_MS: Final = 250


class NodeDriver:
    def __init__(self, *, log: Callable[[str], None]) -> None:
        self.log = log
        self.after_pump: Callable[[], None] = lambda: None
        """Called after the core's output was carried out, outside of a link's turn."""
        self.moved_watchers: list[Callable[[Sequence[ChannelReplica]], None]] = []
        """Called with the replicas whose committed end, log start or role changed."""
        self.catalog_watchers: list[Callable[[Sequence[Applied]], None]] = []
        """Called with what the catalog here has applied."""
        self.storage: StoreThread | None = None
        """None until the node has opened its store."""
        self.writer: MetadataWriter | None = None
        """None until the node has metadata."""
        self.stopping = False
        self._core: NodeCore | None = None
        self._pool: LinkPool | None = None
        self._transport: ReplicationTransport | None = None
        self._addresses: PeerAddresses | None = None
        self._waiting: dict[int, asyncio.Future[Result]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._has_input = False
        self._turn_ends = False
        """A link passes in what arrived, and `end_turn` follows."""
        self._pump_is_due = False
        self._rates: dict[str, int] = {}
        """Bytes per second of the last large bodies from each peer, as recorded."""
        self._wake_ms = self._looked_ms = self._transfers_due_ms = 0
        self._member_spoke = False
        """The metadata group had input, which may have changed when it must be woken."""
        self._ended: asyncio.Future[None] | None = None

    # --- the parts ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The node starts. `wait_stopped` returns after `end`, or raises what `fail` was called with."""
        self._ended = asyncio.get_running_loop().create_future()

    def drive(self, core: NodeCore) -> None:
        self._core = core

    def connect(self, pool: LinkPool) -> None:
        self._pool = pool

    def reach(self, transport: ReplicationTransport, addresses: PeerAddresses) -> None:
        self._transport, self._addresses = transport, addresses

    @staticmethod
    def now_ms() -> int:
        """The clock of the core."""
        return session_clock_us() // 1000

    @property
    def core(self) -> NodeCore:
        assert self._core is not None, "start() first"
        return self._core

    @property
    def has_core(self) -> bool:
        return self._core is not None

    @property
    def channel_logs(self) -> ChannelLogs:
        assert self.storage is not None, "start() first"
        return self.storage.logs

    @property
    def pool(self) -> LinkPool:
        assert self._pool is not None, "start() first"
        return self._pool

    @property
    def transport(self) -> ReplicationTransport:
        assert self._transport is not None, "start() first"
        return self._transport

    # --- the end -----------------------------------------------------------------------------------------

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the node, or kept it from stopping cleanly."""
        return self._ended.exception() if self._ended is not None and self._ended.done() else None

    @property
    def has_failed(self) -> bool:
        return self.failure is not None

    async def wait_stopped(self) -> None:
        """Until the node is stopped; raises what made it impossible to go on."""
        assert self._ended is not None, "start() first"
        await asyncio.shield(self._ended)

    def end(self) -> None:
        """The node was stopped."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def stop(self) -> None:
        """Stop carrying out the core's output."""
        self.stopping = True
        if self._timer is not None:
            self._timer.cancel()

    def cancel_waiting(self) -> None:
        for future in self._waiting.values():
            future.cancel()

    def fail(self, error: Exception) -> None:
        """The state in memory cannot be trusted or understood any more: nothing more leaves this node."""
        if self._ended is not None and not self._ended.done():
            self.log(f"node stops reason={str(error)!r}")
            self._ended.set_exception(error)
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(error)

    def say(self, what: str, **facts: Any) -> None:
        """A line for the log."""
        self.log(" ".join([what, *(f"{name}={value}" for name, value in facts.items())]))

    # --- feeding the core -------------------------------------------------------------------------------

    def receive(self, link: Link, kind: int, body: memoryview) -> None:
        """Messages of a peer; `end_turn` follows."""
        if link.peer_kind != "node":
            raise BadMessage(problem="only nodes take part in the metadata group")
        now_us = session_clock_us()
        now_ms = now_us // 1000
        for message in decode_node_messages(kind, body):
            self.transport.heard_by_link(link.peer, message)
            self.core.receive(link.peer, message, now_ms, now_us)
        self._has_input = True

    def begin_turn(self) -> None:
        self._turn_ends = True

    def end_turn(self) -> None:
        self._turn_ends = False
        if self._has_input or self._pump_is_due:
            self.pump()

    def take(self, messages: Messages) -> None:
        """Take messages of peers that did not come by link."""
        if self._core is None or self.stopping or self.has_failed:
            return
        now_us = session_clock_us()
        try:
            for peer, message in messages:
                self._core.receive(peer, message, now_us // 1000, now_us)
        except Exception as error:
            self.fail(error)  # a bug, as in `_pump`
            return
        self.pump_soon()

    def ask_again(self) -> None:
        """A way to other nodes came or went (see `replication.transport.ask_again`)."""
        if self._core is not None:
            ask_again(self._core.channels.replicas, self.now_ms())
            self.pump_soon()

    def storage_done(self, results: Sequence[StorageResult]) -> None:
        """Orders of replicas were carried out."""
        if self._core is None:
            return
        replicas, now_ms = self._core.channels.replicas, self.now_ms()
        for result in results:
            replicas.storage_done(result, now_ms)
        self.pump()
        self.after_pump()

    def link_up(self, link: Link) -> None:
        if self._core is not None:
            self._core.link_up(link.peer, self.now_ms())
            self.pump_soon()

    def link_down(self, peer: str, _: str) -> None:
        if self._core is not None:
            self._core.link_down(peer, self.now_ms())

    # --- carrying out what it says ------------------------------------------------------------------------

    def pump_soon(self) -> None:
        """Carry out the core's output once, after this turn of the event loop."""
        if self._turn_ends:
            self._has_input = True  # `on_turn` follows
        elif not self._pump_is_due:
            self._pump_is_due = True
            asyncio.get_running_loop().call_soon(self._pump_if_due)  # NS2

    def _pump_if_due(self) -> None:
        if self._pump_is_due:
            self.pump()
            self.after_pump()

    def pump(self) -> None:
        self._pump_is_due = self._has_input = False
        if self.stopping or self.has_failed:
            return
        try:
            self._carry_out()
        except Exception as error:
            # A typed error is a catalog that this software cannot read; anything else is a bug. Both end the node.
            self.fail(error)
            return
        self._arm_timer()

    def _carry_out(self) -> None:
        core, now_ms = self.core, self.now_ms()
        if now_ms >= self._wake_ms:
            if now_ms >= self._transfers_due_ms:
                self._transfers_due_ms = now_ms + _TRANSFERS_MS
                self._note_transfers(now_ms)
            core.wake(now_ms, session_clock_us())
            if self.storage is not None:
                self.storage.look(core.channels.replicas, now_ms)
            self._wake_ms = core.rounds_at_ms()
        elif now_ms >= core.channels.replicas.agenda_at_ms():
            core.channels.replicas.wake_agenda(now_ms)
        while (output := core.poll(now_ms)) is not None:
            for line in output.lines:
                self.log(line)
            # The links come first: the disk would delay them.
            if output.messages:
                self.transport.send(output.messages)
            if output.member is not None:
                self._carry_out_member(output.member)
            if output.replicas is not None:
                self._carry_out_channels(output.replicas)
            for result in output.results:
                future = self._waiting.pop(result.token, None)
                if future is not None and not future.done():
                    future.set_result(result)
            if output.member is None and not (output.replicas and output.replicas.to_metadata):
                break  # nothing more without another input

    def _carry_out_member(self, output: Output) -> None:
        """Carry out the output of the metadata group."""
        if self.writer is None:
            assert self.core.storage is not None
            self.writer = MetadataWriter(
                self.core.storage, on_written=self._written, on_saved=self._saved, on_failed=self.fail
            )
        self._member_spoke = True
        if output.write is not None:
            self.writer.put(output.write)
        if output.save is not None:
            self.writer.put(output.save)
        if any(applied.touched.nodes for applied in output.applied):
            self._follow_addresses()
        if output.applied:
            for watcher in self.catalog_watchers:
                watcher(output.applied)

    def _carry_out_channels(self, output: ReplicasOutput) -> None:
        assert self.storage is not None
        if output.orders:
            self.storage.writer.put(output.orders)
        for outcome in output.produced:
            outcome.token(outcome.first_offset, outcome.error)
        if output.moved:
            self.transport.moved(output.moved)
            for watcher in self.moved_watchers:
                watcher(output.moved)

    def _follow_addresses(self) -> None:
        assert self._addresses is not None
        self._addresses.follow(self.core)

    def _note_transfers(self, now_ms: int) -> None:
        """Note the rate at which each link carried large bodies, for the proximity graph (R10)."""
        for peer in self.core.heartbeats.peers():
            link = self.pool.link_to(peer)
            rate = 0 if link is None else round(link.statistics().bulk_bytes_per_s)
            if rate and self._rates.get(peer) != rate:
                self._rates[peer] = rate
                self.core.heartbeats.record_transfer(peer, rate, _US_PER_S, now_ms)

    def _arm_timer(self) -> None:
        """A timer that fires too early finds nothing to do and is set anew: cheaper than moving it every time. The
        core's wake time is checked every few milliseconds at most: under load it changes all the time."""
        replicas = self.core.channels.replicas
        if self._timer is not None and not self._member_spoke and not replicas.is_due_earlier:
            return
        now_ms = self.now_ms()
        looks_ms = self._looked_ms + _LOOK_MS if self._member_spoke else self._wake_ms
        if now_ms >= min(self._wake_ms, looks_ms):
            self._wake_ms, self._looked_ms, self._member_spoke = self.core.rounds_at_ms(), now_ms, False
            looks_ms = self._wake_ms
        # The channels' wake time changes with every record, and costs nothing to know.
        replicas.is_due_earlier = False
        due_ms = min(self._wake_ms, looks_ms, replicas.agenda_at_ms())
        if self._timer is None or due_ms < self._timer_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = due_ms
            self._timer = asyncio.get_running_loop().call_later(max(0, due_ms - now_ms) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.pump()

    def _written(self, number: int) -> None:
        member = self.core.member
        assert member is not None
        restores = member.restores
        self.core.written(number)
        if member.restores != restores:
            self._follow_addresses()  # a leader's snapshot brought the whole catalog
        self.pump()

    def _saved(self, snapshot: Snapshot, keep_from_index: int) -> None:
        member = self.core.member
        assert member is not None
        member.saved(snapshot, keep_from_index)
        self.pump_soon()

    # --- requests of the core ----------------------------------------------------------------------------

    async def wait_for(self, token: int, ask: Callable[[], None], *, timeout_ms: int, what: str) -> Result:
        """Start a request to the core and wait for the result with this token (NS3)."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        try:
            ask()
            self.pump_soon()
            async with asyncio.timeout(timeout_ms / 1000):
                result = await future
        except TimeoutError:
            raise WaitTimedOut(waiting_for=what, deadline_s=timeout_ms / 1000) from None
        finally:
            if self._waiting.pop(token, None) is not None and self.core.member is not None:
                self.core.member.forget(token)
        if isinstance(result, RequestFailed):
            raise result.error
        return result
