"""The uplink over gRPC, cloud side: Handshake, Live and Backfill of lplex.replication.v1.

A thin shell: it finds out who is calling, reads messages, and hands them to the boat's `Instance`.

Identity comes from the verified client certificate on every RPC. `x-instance-id` counts only with
`insecure_dev`, which serves plaintext for tests.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, TypeAlias

import grpc

from tidelog.blocks.block import MadeBlock
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.foreign import wrap_foreign
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.lpj import LpjCompression
from tidelog.cluster.uplink_channel import fold_log
from tidelog.cluster.uplink_instance import Instance, Outbox, RefusedError, Session
from tidelog.core.uplink.fold import ChannelFold
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
from tidelog.errors import BadIdentity, BlockCorrupt, LogError, LogPoisoned, SessionFenced
from tidelog.storage.log import Log
from tidelog.storage.store import Store
from tidelog.storage.writer import Committer, wall_clock_us
from tidelog.units import MIB
from tidelog.wire import uplink_codec as codec
from tidelog.wire.identity import NameRegistry, identity_of_certificate, is_name, parse_certificate, require_kind
from tidelog.wire.revocation import RevocationList

SERVICE: Final = "lplex.replication.v1.Replication"
MESSAGE_BYTES_MAX: Final = 20 * MIB
_ACK_TICK_S: Final = 0.25
_HALF_CLOSE_S: Final = 0.25
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
    ) -> None:
        self._store = store
        self._revocations = revocations
        self._committer = committer
        self._limits = limits
        self._new_lineage = new_lineage
        self._insecure_dev = insecure_dev
        self._names = NameRegistry(store.names())
        self._opening = asyncio.Lock()
        self.instances: dict[str, Instance] = {}

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
            for instance in self.instances.values():
                instance.wake()
                self._end_if_revoked(instance)

    def _end_if_revoked(self, instance: Instance) -> None:
        """A certificate may be revoked while its streams run; the list re-reads its file by itself."""
        session = instance.session
        if self._revocations is None or session is None or session.serial is None:
            return
        try:
            self._revocations.require_good(session.serial, wall_clock_us())
        except LogError as error:
            session.close(Refused(session=session.number, code=error.code, detail=str(error)))

    # --- who is it -------------------------------------------------------------------------------

    def _identity(self, context: Any, *, claimed: str | None = None) -> tuple[str, int | None]:
        """The boat's name and certificate. What it claims counts in insecure development only."""
        facts = context.auth_context()
        certificates = facts.get("x509_pem_cert", ())
        if certificates:
            certificate = parse_certificate(certificates[0])
            identity = identity_of_certificate(certificate)
            require_kind(identity, "boat")
            if self._revocations is not None:
                self._revocations.require_good(certificate.serial_number, wall_clock_us())
            return identity.name, certificate.serial_number
        if not self._insecure_dev or list(facts.get("transport_security_type", ())) != [b"insecure"]:
            detail = "no client certificate; every boat shows its own"
            raise RefusedError(Refused(session=0, code="no_certificate", detail=detail))
        if claimed is None:
            claimed = _metadata(context, "x-instance-id")
        if not is_name(claimed):
            raise BadIdentity(problem=f"{claimed[:_DETAIL_CHARACTERS_MAX]!a} is not a name for a boat")
        return claimed, None

    async def _instance(self, name: str) -> Instance:
        if name in self.instances:
            return self.instances[name]  # a boat that is known does not wait for another one's log
        async with self._opening:
            if name not in self.instances:
                self._names.admit(name)
                log, fold = await asyncio.to_thread(self._open_or_create, name)
                self.instances[name] = Instance(
                    name=name,
                    log=log,
                    fold=fold,
                    committer=self._committer,
                    limits=self._limits,
                    new_lineage=self._new_lineage,
                    open_log=self._open_or_create,
                )
            return self.instances[name]

    def _open_or_create(self, name: str) -> tuple[Log, ChannelFold]:
        opened: list[Log] = []

        def act(now_us: int) -> None:
            known = name in self._store.channels
            log = (self._store.log if known else self._store.create_channel)(name, now_us=now_us)
            try:
                log.check_usable()
            except LogPoisoned:
                log = self._store.reopen_channel(name, now_us=now_us)
            opened.append(log)

        self._committer.run_exclusive(act)
        return opened[0], fold_log(opened[0].blocks())

    def _session(self, context: Any) -> tuple[Instance, Session]:
        """The instance and session a stream belongs to; a stream without a Handshake has none."""
        name, serial = self._identity(context)
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
        if number != session.number or serial != session.serial:
            raise SessionFenced(session=number, newest=session.number)
        return instance, session

    # --- the RPCs --------------------------------------------------------------------------------

    async def handshake(self, request: bytes, context: Any) -> bytes:
        try:
            claimed, hello = codec.decode_hello(request)
            name, serial = self._identity(context, claimed=claimed)
            if claimed != name:
                shown = claimed[:_DETAIL_CHARACTERS_MAX]
                raise BadIdentity(problem=f"the certificate is for {name!r}, the Handshake for {shown!a}")
            instance = await self._instance(name)
            welcome = await instance.hello(hello)
            if instance.session is not None and instance.session.number == welcome.session:
                instance.session.serial = serial
            return codec.encode_welcome(welcome)
        except (RefusedError, LogError) as error:
            await _abort(context, _refusal_of(error))
        raise AssertionError("abort returned")

    # The handler of a broken call is cancelled. There is nobody left to tell, and gRPC would print a traceback.

    async def live(self, requests: AsyncIterator[bytes], context: Any) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await self._serve(requests, context, _read_live, lambda session: session.live)

    async def backfill(self, requests: AsyncIterator[bytes], context: Any) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            finished = await self._serve(requests, context, _read_backfill, lambda session: session.backfill)
            # A broken call looks like a finished one at first, and is cancelled a moment later. Only a pass that
            # the boat itself finished counts (F5).
            await asyncio.sleep(_HALF_CLOSE_S)
            if finished is not None and not finished[1].over:
                finished[0].handle(BackfillDone(session=finished[1].number))

    async def _serve(
        self,
        requests: AsyncIterator[bytes],
        context: Any,
        read: Reader,
        outbox_of: Callable[[Session], Outbox],
    ) -> tuple[Instance, Session] | None:
        """Carry one stream to its end; whose it was, if the boat ended it and all it sent is answered."""
        try:
            instance, session = self._session(context)
            outbox = outbox_of(session)
            outbox.open()
        except (RefusedError, LogError) as error:
            await _abort(context, _refusal_of(error))
            return None
        taking = asyncio.ensure_future(_take(instance, session, requests, read))
        answering = asyncio.ensure_future(_answer(outbox, context))
        try:
            await asyncio.wait({taking, answering}, return_when=asyncio.FIRST_COMPLETED)
            if taking.done() and not session.over:
                taking.result()
                await instance.wait_settled()
                outbox.finish()
            refusal = await answering
            if refusal is not None:
                await _abort(context, refusal)
            return instance, session
        finally:
            outbox.in_use = False
            for task in (taking, answering):
                task.cancel()
            await asyncio.wait({taking, answering})


async def _take(instance: Instance, session: Session, requests: AsyncIterator[bytes], read: Reader) -> None:
    async for data in requests:
        await instance.wait_room()
        if session.over:
            return
        try:
            message = read(instance, session, data)
            refusal = instance.handle(message) if message is not None else None
        except LogError as error:
            refusal = Refused(session=session.number, code=error.code, detail=str(error))
        if refusal is not None:
            session.close(refusal)
            return


async def _answer(outbox: Outbox, context: Any) -> Refused | None:
    while isinstance(message := await outbox.wait_message(), bytes):
        await context.write(message)
    return message


def _metadata(context: Any, key: str) -> str:
    value = dict(context.invocation_metadata() or ()).get(key, "")
    return value if isinstance(value, str) else ""


def _refusal_of(error: RefusedError | LogError) -> Refused:
    if isinstance(error, RefusedError):
        return error.refusal
    return Refused(session=0, code=error.code, detail=str(error))


async def _abort(context: Any, refusal: Refused) -> None:
    code = _STATUS.get(refusal.code, grpc.StatusCode.INTERNAL)
    # The words may quote what a boat sent; as a header they must stay short.
    await context.abort(code, f"{refusal.code}: {refusal.detail}"[:_DETAIL_CHARACTERS_MAX])


Reader: TypeAlias = Callable[[Instance, Session, bytes], ToCloud[MadeBlock] | None]


def _read_live(instance: Instance, session: Session, data: bytes) -> ToCloud[MadeBlock] | None:
    message = codec.decode_live(data, session=session.number)
    match message:
        case LiveStatus():
            return message
        case codec.RawBlock():
            made = MadeBlock.parse(message.data)
            return LiveData(session=session.number, seqs=made.maker.seqs, block=made)
        case codec.LplexFrame():
            if not message.seq:
                return None  # a device seed: it has no place in the log
            row = (message.time_us, message.can_id, message.payload)
            lineage = instance.channel.receiver.lineage or b""
            made = encode_frames(FrameColumns.from_rows([row]), base_seq=message.seq, producer=lineage)
            return LiveData(session=session.number, seqs=made.maker.seqs, block=made)


def _read_backfill(instance: Instance, session: Session, data: bytes) -> ToCloud[MadeBlock] | None:
    message = codec.decode_backfill(data, session=session.number)
    match message:
        case None | BackfillGone():
            return message
        case codec.RawBlock():
            made = MadeBlock.parse(message.data)
        case codec.LplexBlock():
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
    return BackfillData(session=session.number, seqs=made.maker.seqs, block=made)
