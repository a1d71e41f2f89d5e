"""The messages of one uplink stream, cloud side: read, hand to the boat's `Instance`, answer, until one side ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from typing import Any, Final

from tidelog.blocks.block import MadeBlock
from tidelog.blocks.foreign import salvage_foreign
from tidelog.blocks.lpj import LpjCompression
from tidelog.cluster.uplink.instance import Instance
from tidelog.cluster.uplink.refusals import LAST_ANSWER_S, abort
from tidelog.cluster.uplink.session import AnswerOutbox, Session
from tidelog.codecs import uplink_codec as codec
from tidelog.core.uplink.messages import (
    BackfillData,
    BackfillGone,
    BackfillUnread,
    LiveData,
    LiveStatus,
    Refused,
    ToCloud,
)
from tidelog.errors import BadBlock, BlockCorrupt, LogError
from tidelog.storage.log.writer import wall_clock_us

_DICTIONARY_MAGIC: Final = (0xEC30A437).to_bytes(4, "little")
_FIRST_FRAME_S: Final = 5.0
"""How long files of an lplex boat wait for a frame of Live, which tells its runs apart."""


async def serve(
    instance: Instance, session: Session, outbox: AnswerOutbox, take: Coroutine[Any, Any, None], context: Any
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
        await asyncio.wait({answering}, timeout=LAST_ANSWER_S if session.over else None)
        if session.refusal is not None:
            await abort(context, session.refusal)
        answering.result()
    finally:
        outbox.in_use = False
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def take_live(instance: Instance, session: Session, requests: AsyncIterator[bytes]) -> None:
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


async def take_backfill(instance: Instance, session: Session, requests: AsyncIterator[bytes]) -> None:
    async for data in requests:
        await instance.wait_room()
        if session.over:
            return
        instance.watch.last_seen_us = wall_clock_us()
        try:
            refusal = None
            for found in codec.decode_backfill(data, session=session.number):
                if isinstance(found, codec.LplexBlock):
                    await session.wait_live_frame(_FIRST_FRAME_S)
                refusal = _take_backfill(instance, session, found)
                if refusal is not None:
                    break
        except LogError as error:
            refusal = Refused(session=session.number, code=error.code, detail=str(error))
        if refusal is not None:
            instance.refuse(session, refusal)
            return


async def _answer(outbox: AnswerOutbox, context: Any) -> Refused | None:
    while isinstance(message := await outbox.wait_message(), bytes):
        await context.write(message)
    return message


def _take_backfill(instance: Instance, session: Session, found: codec.BackfillIn) -> Refused | None:
    match found:
        case BackfillGone():
            return instance.take(session, found)
        case codec.RawBlock():
            return _take_made(instance, session, found)
        case codec.LplexBlock():
            try:
                return instance.take(session, _lplex_data(instance, session, found))
            except BadBlock as error:
                return _unread(instance, session, found, error)


def _take_made(instance: Instance, session: Session, found: codec.RawBlock) -> Refused | None:
    """A block that does not decode was damaged on the boat or on its way: its place is told with the refusal."""
    number, offset = session.number, found.file_offset
    try:
        made = MadeBlock.parse(found.data)
        data = BackfillData(session=number, seqs=made.maker.seqs, block=made, file_offset=offset)
        refusal = instance.take(session, data)
    except BadBlock as error:
        refusal = Refused(session=number, code=error.code, detail=str(error))
    if refusal is None or offset is None or refusal.code != BlockCorrupt.code:
        return refusal
    return replace(refusal, detail=f"{refusal.detail} (at byte {offset} of its segment file on the boat)")


def _unread(instance: Instance, session: Session, found: codec.LplexBlock, error: BadBlock) -> Refused | None:
    """Refusing a block that nobody can read would end Live as well, again and again: the boat sends it every time.

    It fills nothing. The hole stays until F5 calls it lost. A block whose seqs are none tells not even where it was.
    """
    instance.watch.events.refused(wall_clock_us(), error.code)
    if not found.frame_count or not _are_seqs(found.base_seq, found.frame_count):
        return None
    seqs = range(found.base_seq, found.base_seq + found.frame_count)
    return instance.take(session, BackfillUnread(session=session.number, seqs=seqs, time_us=found.base_time_us))


def _are_seqs(base_seq: int, count: int) -> bool:
    """Seqs begin at 1, and end where no boat ever comes."""
    return base_seq >= 1 and base_seq + count - 1 <= codec.SEQ_MAX


def _lplex_data(instance: Instance, session: Session, message: codec.LplexBlock) -> ToCloud[MadeBlock]:
    if message.compressed and message.data[4:8] == _DICTIONARY_MAGIC:
        raise BlockCorrupt(problem="lplex sends only a part of a block that it compressed with a dictionary")
    found = salvage_foreign(
        message.data,
        version=2,
        compression=LpjCompression.ZSTD if message.compressed else LpjCompression.NONE,
        block_size=message.block_size,
        producer=instance.channel.receiver.lineage or b"",
    )
    if (message.base_seq, message.frame_count) != (found.base_seq, found.frame_count):
        raise BlockCorrupt(
            problem=f"the block holds {found.frame_count} frames from seq {found.base_seq}, "
            f"the message says {message.frame_count} from {message.base_seq}"
        )
    if not _are_seqs(found.base_seq, found.frame_count):
        raise BlockCorrupt(problem=f"{found.frame_count} frames from seq {found.base_seq} on: no boat has such seqs")
    if found.made is None or not found.made.maker.seqs:
        raise BlockCorrupt(problem=found.problem or "the block holds no frames")
    return BackfillData(
        session=session.number,
        seqs=found.made.maker.seqs,
        block=found.made,
        lost=found.lost,
        problem=found.problem,
    )
