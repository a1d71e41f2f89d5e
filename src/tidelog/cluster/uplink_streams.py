"""The messages of one uplink stream, cloud side: read, hand to the boat's `Instance`, answer, until one side ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final

from tidelog.blocks.block import MadeBlock
from tidelog.blocks.foreign import wrap_foreign
from tidelog.blocks.lpj import LpjCompression
from tidelog.cluster.uplink_instance import Instance
from tidelog.cluster.uplink_refusals import LAST_ANSWER_S, abort
from tidelog.cluster.uplink_session import Outbox, Session
from tidelog.core.uplink.messages import BackfillData, BackfillGone, LiveData, LiveStatus, Refused, ToCloud
from tidelog.errors import BlockCorrupt, LogError
from tidelog.storage.writer import wall_clock_us
from tidelog.wire import uplink_codec as codec

_DICTIONARY_MAGIC: Final = (0xEC30A437).to_bytes(4, "little")


async def serve(
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
