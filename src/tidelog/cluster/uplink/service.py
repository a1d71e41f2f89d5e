"""The uplink over gRPC, node side: Handshake, Live and Backfill of lplex.replication.v1.

A thin shell: it finds out who is calling and which node leads the boat's channel. What this node leads is handed to the
boat's `Instance`; what another leads is passed on to it (`uplink.relay`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc

from tidelog.cluster.uplink.boats import Boats
from tidelog.cluster.uplink.identity import Caller, UplinkIdentity, metadata_of
from tidelog.cluster.uplink.instance import Instance
from tidelog.cluster.uplink.log_lines import BoatLines
from tidelog.cluster.uplink.refusals import DETAIL_CHARACTERS_MAX, UplinkRefusedError, abort, refusal_of
from tidelog.cluster.uplink.relay import MESSAGE_BYTES_MAX as MESSAGE_BYTES_MAX
from tidelog.cluster.uplink.relay import SERVICE as SERVICE
from tidelog.cluster.uplink.relay import UplinkRelay
from tidelog.cluster.uplink.session import AnswerOutbox, Session
from tidelog.cluster.uplink.streams import serve, take_backfill, take_live
from tidelog.codecs import uplink_codec as codec
from tidelog.core.uplink.messages import BackfillDone, Refused
from tidelog.errors import BadIdentity, LogClosed, LogError, NotChannelLeader, SessionFenced, WaitTimedOut
from tidelog.storage.log.writer import steady_clock_ms, wall_clock_us

_ACK_TICK_S: Final = 0.25
_HALF_CLOSE_S: Final = 0.25
_OPENING_S: Final = 10.0
_SESSION_DIGITS_MAX: Final = 19


class UplinkService:
    """The three RPCs. Add `handler()` to a server; run `run_acks` beside it; `open` it once boats can be served."""

    def __init__(
        self,
        *,
        boats: Boats,
        identity: UplinkIdentity,
        relay: UplinkRelay,
        own_address: Callable[[], str] = str,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`own_address` is where boats find this node: those that dialed another one are told, if this one leads."""
        self.boats = boats
        self.identity = identity
        self._relay = relay
        self._own_address = own_address
        self._lines = BoatLines(log)
        self._opened = asyncio.Event()
        self.closing: Refused | None = None
        """Set once the node is going down."""
        self.broken: str | None = None
        """A part of the uplink that ended although nobody stopped it."""

    @property
    def instances(self) -> dict[str, Instance]:
        """Boats that this node leads."""
        return self.boats.instances

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    def open(self) -> None:
        """Boats may come."""
        self._opened.set()

    def handler(self) -> grpc.GenericRpcHandler:
        methods = {
            "Handshake": grpc.unary_unary_rpc_method_handler(self.handshake),
            "Live": grpc.stream_stream_rpc_method_handler(self.live),
            "Backfill": grpc.stream_stream_rpc_method_handler(self.backfill),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def run_acks(self) -> None:
        """Acks that are due by the clock: a quiet bus must not look like a dead link."""
        while True:
            await asyncio.sleep(_ACK_TICK_S)
            at_ms = steady_clock_ms()
            for instance in list(self.instances.values()):
                instance.wake(at_ms)
                self._end_if_revoked(instance)
            self._relay.check()

    def _end_if_revoked(self, instance: Instance) -> None:
        """A certificate may be revoked while its streams run; the list re-reads its file by itself."""
        session = instance.session
        if session is None or session.over:
            return
        try:
            self.identity.require_good(session.serials)
        except LogError as error:
            refusal = Refused(session=session.number, code=error.code, detail=str(error))
            instance.refuse(session, refusal)
            if not session.live.in_use:  # else Live says it when it ends, as with any refusal
                self._lines.refused(instance.name, refusal, now_ms=steady_clock_ms())

    def close(self) -> None:
        """End all streams and refuse new ones: the node is going down."""
        error = LogClosed(log="the cloud")
        self.closing = Refused(session=0, code=error.code, detail="the cloud is stopping; dial again")
        for instance in self.instances.values():
            if instance.session is not None:
                instance.session.close(self.closing)

    def _session(self, context: Any, caller: Caller) -> tuple[Instance, Session]:
        """The instance and session a stream belongs to; a stream without a Handshake has none."""
        instance = self.instances.get(caller.boat)
        if instance is None or instance.session is None:
            raise SessionFenced(session=0, newest=0)
        session = instance.session
        claimed = metadata_of(context, "x-session")
        number = session.number
        if claimed:
            is_number = len(claimed) <= _SESSION_DIGITS_MAX and claimed.isascii() and claimed.isdecimal()
            number = int(claimed) if is_number else 0
        # With another certificate of the same boat too: a revocation must end every stream that was opened with it.
        if number != session.number or caller.serials != session.serials:
            raise SessionFenced(session=number, newest=session.number)
        return instance, session

    # --- the RPCs --------------------------------------------------------------------------------

    async def handshake(self, request: bytes, context: Any) -> bytes:
        instance: Instance | None = None
        claimed = ""
        try:
            self._check_open()
            claimed, hello = codec.decode_hello(request)
            caller = self.identity.of(context, claimed=claimed)
            if claimed != caller.boat:
                shown = claimed[:DETAIL_CHARACTERS_MAX]
                raise BadIdentity(problem=f"the certificate is for {caller.boat!r}, the Handshake for {shown!a}")
            await self._wait_open()
            try:
                instance = await self.boats.instance(caller.boat)
            except NotChannelLeader as error:
                if error.leader is None or caller.is_passed_on:
                    raise
                return await self._relay.handshake(request, context, caller, error)
            instance.watch.last_seen_us = wall_clock_us()
            before = instance.session
            was_open = before is not None and not before.over
            welcome = await instance.hello(hello)
            self._check_open()
            if before is not None and was_open:
                self._lines.fenced(caller.boat, session=before.number, newest=welcome.session)
            self._lines.connected(
                caller.boat,
                session=welcome.session,
                head=hello.head,
                cursor=welcome.cursor,
                now_ms=steady_clock_ms(),
            )
            if instance.session is not None and instance.session.number == welcome.session:
                instance.session.serials = caller.serials
            # Who dialed here needs no address: this one may not even be the way it came.
            return codec.encode_welcome(welcome, leader=self._own_address() if caller.is_passed_on else "")
        except (UplinkRefusedError, LogError) as error:
            refusal = refusal_of(error)
            if instance is not None:
                instance.watch.events.refused(wall_clock_us(), refusal.code)
            self._lines.refused(claimed[:DETAIL_CHARACTERS_MAX], refusal, now_ms=steady_clock_ms())
            await abort(context, refusal)
        raise AssertionError("abort returned")

    def _check_open(self) -> None:
        if self.closing is not None:
            raise UplinkRefusedError(self.closing)

    async def _wait_open(self) -> None:
        try:
            async with asyncio.timeout(_OPENING_S):
                await self._opened.wait()
        except TimeoutError:
            raise WaitTimedOut(waiting_for="the node to be registered", deadline_s=_OPENING_S) from None

    # The handler of a broken call is cancelled. There is nobody left to tell, and gRPC would print a traceback.

    async def live(self, requests: AsyncIterator[bytes], context: Any) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            opened = await self._open_stream("Live", requests, context, lambda session: session.live)
            if opened is None:
                return
            instance, session = opened
            instance.live_started(session)
            try:
                await serve(instance, session, session.live, take_live(instance, session, requests), context)
            finally:
                instance.live_stopped(session)
                if session.refusal is not None:
                    self._lines.refused(instance.name, session.refusal, now_ms=steady_clock_ms())

    async def backfill(self, requests: AsyncIterator[bytes], context: Any) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            opened = await self._open_stream("Backfill", requests, context, lambda session: session.backfill)
            if opened is None:
                return
            instance, session = opened
            instance.backfill_started(session)
            try:
                taking = take_backfill(instance, session, requests)
                await serve(instance, session, session.backfill, taking, context)
                # A broken call looks like a finished one at first, and is cancelled a moment later. Only a pass
                # that the boat itself finished counts (F5).
                await asyncio.sleep(_HALF_CLOSE_S)
                if not session.over:
                    instance.handle(BackfillDone(session=session.number))
            finally:
                instance.backfill_stopped(session)

    async def _open_stream(
        self, method: str, requests: AsyncIterator[bytes], context: Any, outbox_of: Callable[[Session], AnswerOutbox]
    ) -> tuple[Instance, Session] | None:
        """What the stream belongs to here; None for one that was passed on, and is over."""
        try:
            self._check_open()
            caller = self.identity.of(context)
            record = self.boats.record(caller.boat)
            leads_elsewhere = record is not None and self.boats.leader_elsewhere(caller.boat) is not None
            if record is not None and leads_elsewhere and not caller.is_passed_on:
                await self._relay.stream(method, requests, context, caller, record)
                return None
            instance, session = self._session(context, caller)
            outbox_of(session).open()
        except (UplinkRefusedError, LogError) as error:
            await abort(context, refusal_of(error))
            raise AssertionError("abort returned") from error
        return instance, session
