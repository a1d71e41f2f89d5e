"""The uplink over gRPC, cloud side: Handshake, Live and Backfill of lplex.replication.v1.

A thin shell: it finds out who is calling, reads messages, and hands them to the boat's `Instance`.

Identity comes from the verified client certificate on every RPC. `x-instance-id` counts only with
`insecure_dev`, which serves plaintext for tests.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

import grpc

from tidelog.blocks.block import MadeBlock
from tidelog.blocks.foreign import wrap_foreign
from tidelog.blocks.lpj import LpjCompression
from tidelog.cluster.channel_log import OpenedLog, hold_all, open_channel_log
from tidelog.cluster.history import newest_frames
from tidelog.cluster.instance_watch import InstanceWatch
from tidelog.cluster.state_file import SavedState, read_devices, read_state
from tidelog.cluster.uplink_instance import Instance, RefusedError
from tidelog.cluster.uplink_session import Outbox, Session
from tidelog.core.uplink.messages import (
    BackfillData,
    BackfillDone,
    BackfillGone,
    LiveData,
    LiveStatus,
    Refused,
    ToCloud,
)
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.errors import (
    BadIdentity,
    BlockCorrupt,
    LogClosed,
    LogError,
    LogPoisoned,
    SessionFenced,
    UnknownChannel,
)
from tidelog.nmea.devices import Device
from tidelog.storage.log import Log
from tidelog.storage.store import Store
from tidelog.storage.writer import Committer, steady_clock_ms, wall_clock_us
from tidelog.units import MIB
from tidelog.wire import uplink_codec as codec
from tidelog.wire.identity import NameRegistry, identity_of_certificate, is_name, parse_certificate, require_kind
from tidelog.wire.revocation import RevocationList

SERVICE: Final = "lplex.replication.v1.Replication"
MESSAGE_BYTES_MAX: Final = 20 * MIB
_ACK_TICK_S: Final = 0.25
_HALF_CLOSE_S: Final = 0.25
_LAST_ANSWER_S: Final = 1.0
_PEM_END: Final = b"-----END CERTIFICATE-----"
_CHAIN_MAX: Final = 10
_DICTIONARY_MAGIC: Final = (0xEC30A437).to_bytes(4, "little")
_DETAIL_CHARACTERS_MAX: Final = 500
_SESSION_DIGITS_MAX: Final = 19

_STATUS: Final = {
    "rate_exceeded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "lag_exceeded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "too_many_holes": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "disk_full": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "too_many_names": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "queue_full": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "session_fenced": grpc.StatusCode.FAILED_PRECONDITION,
    "foreign_lineage": grpc.StatusCode.FAILED_PRECONDITION,
    "conflicting_frames": grpc.StatusCode.FAILED_PRECONDITION,
    "no_certificate": grpc.StatusCode.UNAUTHENTICATED,
    "bad_identity": grpc.StatusCode.PERMISSION_DENIED,
    "certificate_revoked": grpc.StatusCode.PERMISSION_DENIED,
    "weak_certificate": grpc.StatusCode.PERMISSION_DENIED,
    "wrong_kind": grpc.StatusCode.PERMISSION_DENIED,
    "name_taken": grpc.StatusCode.PERMISSION_DENIED,
    "bad_message": grpc.StatusCode.INVALID_ARGUMENT,
    "invalid_record": grpc.StatusCode.INVALID_ARGUMENT,
    "bad_block": grpc.StatusCode.INVALID_ARGUMENT,
    "block_corrupt": grpc.StatusCode.INVALID_ARGUMENT,
    "block_truncated": grpc.StatusCode.INVALID_ARGUMENT,
    "block_too_large": grpc.StatusCode.INVALID_ARGUMENT,
    "wait_timed_out": grpc.StatusCode.UNAVAILABLE,
    "log_closed": grpc.StatusCode.UNAVAILABLE,
}


class UplinkService:
    """The three RPCs. Add `handler()` to a server; run `run_acks` beside it."""

    def __init__(
        self,
        *,
        store: Store,
        committer: Committer,
        limits: ReceiverLimits,
        new_lineage: Callable[[], bytes],
        revocations: RevocationList | None = None,
        insecure_dev: bool = False,
        fleet: str | None = None,
        save_soon: Callable[[Instance], None] = lambda _: None,
    ) -> None:
        self.store = store
        self._revocations = revocations
        self._committer = committer
        self._limits = limits
        self._new_lineage = new_lineage
        self._insecure_dev = insecure_dev
        self._fleet = fleet
        self._save_soon = save_soon
        self._names = NameRegistry(store.names())
        self._opening: dict[str, asyncio.Lock] = {}
        self.closing: Refused | None = None
        """Set once the cloud is going down."""
        self.instances: dict[str, Instance] = {}
        """Boats whose log is open and folded."""
        self.watches: dict[str, InstanceWatch] = {}
        self.saved: dict[str, SavedState] = {}
        """Boats that are not opened yet, from files that fit their logs."""
        self.all_listed = False
        """Nothing is missing in `instances` and `saved` together."""
        self.broken: str | None = None
        """A part of the cloud that ended although nobody stopped it."""

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
            for instance in self.instances.values():
                instance.wake(at_ms)
                self._end_if_revoked(instance)

    def _end_if_revoked(self, instance: Instance) -> None:
        """A certificate may be revoked while its streams run; the list re-reads its file by itself."""
        session = instance.session
        if session is None or session.over:
            return
        try:
            self._require_good(session.serials)
        except LogError as error:
            instance.refuse(session, Refused(session=session.number, code=error.code, detail=str(error)))

    def close(self) -> None:
        """End all streams and refuse new ones: the cloud is going down."""
        error = LogClosed(log="the cloud")
        self.closing = Refused(session=0, code=error.code, detail="the cloud is stopping; dial again")
        for instance in self.instances.values():
            if instance.session is not None:
                instance.session.close(self.closing)

    def watch(self, name: str) -> InstanceWatch:
        """What is told about a boat that the store knows."""
        if name not in self.watches:
            if name not in self.store.channels:
                raise UnknownChannel(channel=name)
            self.watches[name] = InstanceWatch()
        return self.watches[name]

    # --- who is it -------------------------------------------------------------------------------

    def _identity(self, context: Any, *, claimed: str | None = None) -> tuple[str, tuple[int, ...]]:
        """The boat's name, and the serial numbers of its certificate and of those between it and the authority.

        What it claims counts in insecure development only.
        """
        facts = context.auth_context()
        certificates = facts.get("x509_pem_cert", ())
        if certificates:
            certificate = parse_certificate(certificates[0])
            identity = identity_of_certificate(certificate, fleet=self._fleet)
            require_kind(identity, "boat")
            chain = [parse_certificate(data).serial_number for data in _each_pem(facts.get("x509_pem_cert_chain", ()))]
            serials = (certificate.serial_number, *chain)
            self._require_good(serials)
            return identity.name, serials
        if not self._insecure_dev or list(facts.get("transport_security_type", ())) != [b"insecure"]:
            detail = "no client certificate; every boat shows its own"
            raise RefusedError(Refused(session=0, code="no_certificate", detail=detail))
        if claimed is None:
            claimed = _metadata(context, "x-instance-id")
        if not is_name(claimed):
            raise BadIdentity(problem=f"{claimed[:_DETAIL_CHARACTERS_MAX]!a} is not a name for a boat")
        return claimed, ()

    def _require_good(self, serials: Iterable[int]) -> None:
        if self._revocations is not None:
            for serial in serials:
                self._revocations.require_good(serial, wall_clock_us())

    async def instance(self, name: str) -> Instance:
        """A boat's instance; its log is made, or opened and folded, in a thread."""
        if name in self.instances:
            return self.instances[name]
        self._names.admit(name)
        # One lock each: nobody waits for another boat's log to be read.
        async with self._opening.setdefault(name, asyncio.Lock()):
            if name not in self.instances:
                self.instances[name] = await self._load(name)
                self.saved.pop(name, None)
        self._opening.pop(name, None)
        return self.instances[name]

    async def _load(self, name: str) -> Instance:
        opened = await asyncio.to_thread(self._open_or_create, name)
        saved, devices = await asyncio.to_thread(self._remembered, name, opened.log)
        watch = self.watch(name)
        watch.restore_devices(devices)
        watch.last_seen_us = watch.last_seen_us or max(opened.log.segments[-1].index.append_max_us, 0)
        if saved is not None:
            watch.last_seen_us, watch.journal_bytes = saved.status.last_seen_us, saved.status.journal_bytes
        return Instance(
            name=name,
            opened=opened,
            committer=self._committer,
            limits=self._limits,
            new_lineage=self._new_lineage,
            open_log=self._open_or_create,
            watch=watch,
            save_soon=self._save_soon,
        )

    def _remembered(self, name: str, log: Log) -> tuple[SavedState | None, list[Device]]:
        """What the log does not say, from files; devices also from the log's end."""
        devices = read_devices(self.store.disk, name)
        if devices is None:
            watch = InstanceWatch()
            for frames in newest_frames(log):
                watch.learn_devices(frames)
            devices = watch.devices.devices()
        return read_state(self.store.disk, name), devices

    def _open_or_create(self, name: str) -> OpenedLog:
        opened: list[Log] = []

        def act(now_us: int) -> None:
            known = name in self.store.channels
            log = (self.store.log if known else self.store.create_channel)(name, now_us=now_us)
            try:
                log.check_usable()
            except LogPoisoned:
                log = self.store.reopen_channel(name, now_us=now_us)
            hold_all(log)
            opened.append(log)

        self._committer.run_exclusive(act)
        saved = read_state(self.store.disk, name)
        return open_channel_log(opened[0], hint=saved.snapshot if saved is not None else None)

    def _session(self, context: Any) -> tuple[Instance, Session]:
        """The instance and session a stream belongs to; a stream without a Handshake has none."""
        name, serials = self._identity(context)
        instance = self.instances.get(name)
        if instance is None or instance.session is None:
            raise SessionFenced(session=0, newest=0)
        session = instance.session
        claimed = _metadata(context, "x-session")
        number = session.number
        if claimed:
            is_number = len(claimed) <= _SESSION_DIGITS_MAX and claimed.isascii() and claimed.isdecimal()
            number = int(claimed) if is_number else 0
        # With another certificate of the same boat too: a revocation must end every stream that was opened with it.
        if number != session.number or serials != session.serials:
            raise SessionFenced(session=number, newest=session.number)
        return instance, session

    # --- the RPCs --------------------------------------------------------------------------------

    async def handshake(self, request: bytes, context: Any) -> bytes:
        instance: Instance | None = None
        try:
            self._check_open()
            claimed, hello = codec.decode_hello(request)
            name, serials = self._identity(context, claimed=claimed)
            if claimed != name:
                shown = claimed[:_DETAIL_CHARACTERS_MAX]
                raise BadIdentity(problem=f"the certificate is for {name!r}, the Handshake for {shown!a}")
            instance = await self.instance(name)
            instance.watch.last_seen_us = wall_clock_us()
            welcome = await instance.hello(hello)
            self._check_open()
            if instance.session is not None and instance.session.number == welcome.session:
                instance.session.serials = serials
            return codec.encode_welcome(welcome)
        except (RefusedError, LogError) as error:
            refusal = _refusal_of(error)
            if instance is not None:
                instance.watch.events.refused(wall_clock_us(), refusal.code)
            await _abort(context, refusal)
        raise AssertionError("abort returned")

    def _check_open(self) -> None:
        if self.closing is not None:
            raise RefusedError(self.closing)

    # The handler of a broken call is cancelled. There is nobody left to tell, and gRPC would print a traceback.

    async def live(self, requests: AsyncIterator[bytes], context: Any) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            instance, session = await self._open_stream(context, lambda session: session.live)
            instance.live_started(session)
            try:
                await _serve(instance, session, session.live, _take_live(instance, session, requests), context)
            finally:
                instance.live_stopped(session)

    async def backfill(self, requests: AsyncIterator[bytes], context: Any) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            instance, session = await self._open_stream(context, lambda session: session.backfill)
            instance.backfill_started(session)
            try:
                taking = _take_backfill(instance, session, requests)
                await _serve(instance, session, session.backfill, taking, context)
                # A broken call looks like a finished one at first, and is cancelled a moment later. Only a pass
                # that the boat itself finished counts (F5).
                await asyncio.sleep(_HALF_CLOSE_S)
                if not session.over:
                    instance.handle(BackfillDone(session=session.number))
            finally:
                instance.backfill_stopped(session)

    async def _open_stream(self, context: Any, outbox_of: Callable[[Session], Outbox]) -> tuple[Instance, Session]:
        try:
            self._check_open()
            instance, session = self._session(context)
            outbox_of(session).open()
        except (RefusedError, LogError) as error:
            await _abort(context, _refusal_of(error))
            raise AssertionError("abort returned") from error
        return instance, session


async def _serve(
    instance: Instance, session: Session, outbox: Outbox, take: Coroutine[Any, Any, None], context: Any
) -> None:
    """Carry one stream to its end: the boat's, once all it sent is answered, or that of its session."""
    taking = asyncio.ensure_future(take)
    answering = asyncio.ensure_future(_answer(outbox, context))
    closing = asyncio.ensure_future(session.wait_closed())
    tasks = {taking, answering, closing}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if taking.done() and not session.over:
            taking.result()
            await instance.wait_settled()
            outbox.finish()
            await asyncio.wait({answering, closing}, return_when=asyncio.FIRST_COMPLETED)
        # Who does not read does not hear the last answer either.
        await asyncio.wait({answering}, timeout=_LAST_ANSWER_S if session.over else None)
        if session.refusal is not None:
            await _abort(context, session.refusal)
        answering.result()
    finally:
        outbox.in_use = False
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _take_live(instance: Instance, session: Session, requests: AsyncIterator[bytes]) -> None:
    async for data in requests:
        await instance.wait_room()
        if session.over:
            return
        instance.watch.last_seen_us = wall_clock_us()
        try:
            message = codec.decode_live(data, session=session.number)
            match message:
                case codec.LplexFrame():
                    refusal = instance.take_frame(session, message)
                case codec.RawBlock():
                    made = MadeBlock.parse(message.data)
                    refusal = instance.take(session, LiveData(session=session.number, seqs=made.maker.seqs, block=made))
                case LiveStatus():
                    refusal = instance.take(session, message)
        except LogError as error:
            refusal = Refused(session=session.number, code=error.code, detail=str(error))
        if refusal is not None:
            instance.refuse(session, refusal)
            return
    refusal = instance.flush_frames()
    if refusal is not None:
        instance.refuse(session, refusal)


async def _take_backfill(instance: Instance, session: Session, requests: AsyncIterator[bytes]) -> None:
    async for data in requests:
        await instance.wait_room()
        if session.over:
            return
        instance.watch.last_seen_us = wall_clock_us()
        try:
            refusal = None
            for found in codec.decode_backfill(data, session=session.number):
                message = _read_backfill(instance, session, found)
                refusal = instance.take(session, message) if message is not None else None
                if refusal is not None:
                    break
        except LogError as error:
            refusal = Refused(session=session.number, code=error.code, detail=str(error))
        if refusal is not None:
            instance.refuse(session, refusal)
            return


async def _answer(outbox: Outbox, context: Any) -> Refused | None:
    while isinstance(message := await outbox.wait_message(), bytes):
        await context.write(message)
    return message


def _each_pem(chain: Sequence[bytes]) -> list[bytes]:
    """The certificates between the boat's own and the authority, as gRPC gives them: PEM, one after the other."""
    parts = b"".join(chain).split(_PEM_END)[:_CHAIN_MAX]
    return [part + _PEM_END for part in parts if part.strip()]


def _metadata(context: Any, key: str) -> str:
    value = dict(context.invocation_metadata() or ()).get(key, "")
    return value if isinstance(value, str) else ""


def _refusal_of(error: RefusedError | LogError) -> Refused:
    if isinstance(error, RefusedError):
        return error.refusal
    return Refused(session=0, code=error.code, detail=str(error))


async def _abort(context: Any, refusal: Refused) -> None:
    code = _STATUS.get(refusal.code, grpc.StatusCode.INTERNAL)
    # The words may quote what a boat sent; as a header they must stay short. Who does not read is not waited for.
    try:
        async with asyncio.timeout(_LAST_ANSWER_S):
            await context.abort(code, f"{refusal.code}: {refusal.detail}"[:_DETAIL_CHARACTERS_MAX])
    except TimeoutError:
        raise grpc.aio.AbortError from None


def _read_backfill(instance: Instance, session: Session, found: codec.BackfillIn) -> ToCloud[MadeBlock] | None:
    match found:
        case BackfillGone():
            return found
        case codec.RawBlock():
            made = MadeBlock.parse(found.data)
        case codec.LplexBlock():
            if found.compressed and found.data[4:8] == _DICTIONARY_MAGIC:
                # lplex sends a part of a block that it compressed with a dictionary, and nobody can read it. Refusing
                # it would end Live as well, again and again. The hole stays until F5 calls it lost.
                instance.watch.events.refused(wall_clock_us(), BlockCorrupt.code)
                return None
            made = _foreign_block(instance, found)
    return BackfillData(session=session.number, seqs=made.maker.seqs, block=made)


def _foreign_block(instance: Instance, message: codec.LplexBlock) -> MadeBlock:
    made = wrap_foreign(
        message.data,
        version=2,
        compression=LpjCompression.ZSTD if message.compressed else LpjCompression.NONE,
        block_size=message.block_size,
        producer=instance.channel.receiver.lineage or b"",
    )
    if (message.base_seq, message.frame_count) != (made.maker.base_seq, made.maker.record_count):
        raise BlockCorrupt(
            problem=f"the block holds {made.maker.record_count} frames from seq {made.maker.base_seq}, "
            f"the message says {message.frame_count} from {message.base_seq}"
        )
    return made
