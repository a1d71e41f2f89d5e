"""A hostile boat: seqs that are not in its blocks, lineages of others, bodies that do not decode or inflate beyond
every limit, sessions that do not exist.

It has a certificate and a channel of its own, so all it may do is fill that channel with nonsense. What must hold:
every message is answered or refused with a typed error; a refused one changes nothing; the fold of its channel stays
sound; and the other boats of the same cloud notice nothing, which their own models check.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from tidelog.blocks.block import MadeBlock, make_block
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.frames import FrameForm, encode_frames
from tidelog.blocks.header import BlockKind, BlockLimits, Codec
from tidelog.core.uplink.fold import ChannelFold
from tidelog.core.uplink.messages import (
    BackfillAck,
    BackfillData,
    BackfillDone,
    BackfillGone,
    Hello,
    LiveAck,
    LiveData,
    LiveStatus,
    Welcome,
)
from tidelog.sim.network import Connection, Scheduler, SimLink, Way
from tidelog.sim.uplink.cloud import START_US, SimCloud
from tidelog.sim.uplink.model import HeldInCloud, IssuedFrames, UplinkBroken, UplinkModel
from tidelog.units import MIB

_HEADS: Final = (-1, 0, 1, 7, 1_000, 2**40, 2**63 - 2, 2**63, 2**70)
_SPANS: Final = (range(1, 5), range(3, 3), range(5, 2), range(0, 4), range(-7, 4), range(1, 9, 2), range(1, 2**62))


class HostileModel(UplinkModel):
    """Its bus gave nothing, so there is nothing to compare with: only once per seq, and a fold that is sound."""

    honest = False
    refusals = frozenset(
        {
            "block_corrupt",
            "conflicting_frames",
            "foreign_lineage",
            "invalid_record",
            "rate_exceeded",
            "too_many_holes",
        }
    )

    def _take_run(self, lineage: bytes, issued: IssuedFrames, held: HeldInCloud, seqs: range, rows: list[Any]) -> None:
        if len(rows) != len(seqs):
            raise UplinkBroken(f"a block with {len(rows)} frames counts as seqs [{seqs.start}, {seqs.stop})")
        held.frames.update(dict.fromkeys(seqs, 0))

    def _take_lost(self, lineage: bytes, seqs: range) -> None:
        """Its own loss."""

    def _take_void(self, lineage: bytes, seqs: range) -> None:
        """Its own too."""

    def check_fold(self, fold: ChannelFold) -> None:
        self.checks += 1
        if self.checks % 16 == 0:
            fold.check()
        for lineage in self.touched:
            fold.lineages[lineage].check()
            if fold.lineages[lineage].held.count() != len(self.held[lineage].frames):
                raise UplinkBroken(
                    f"8: the fold of a hostile boat holds what its log does not, lineage {lineage.hex()[:8]}"
                )
        self.touched.clear()


class HostileBoat:
    """Sends every second or so, until the world heals."""

    def __init__(
        self,
        *,
        name: str,
        scheduler: Scheduler,
        rng: random.Random,
        link: SimLink,
        cloud: SimCloud,
        counters: Counter[str],
        lineages: Callable[[], list[bytes]],
    ) -> None:
        self.name = name
        self.scheduler = scheduler
        self.rng = rng
        self.link = link
        self.cloud = cloud
        self.counters = counters
        self._lineages = lineages
        """Lineages of the other boats, which it knows."""
        self._lineage = rng.randbytes(16)
        self._invented = rng.randbytes(16)
        self._connection: Connection | None = None
        self._session = 0
        self._next_seq = 1
        self._quiet = False
        self._pause_ms = rng.choice((200, 1_000, 5_000))
        scheduler.after(rng.randrange(2_000), self._speak)

    def heal(self) -> None:
        self._quiet = True

    def broken(self, connection: Connection) -> None:
        if connection is self._connection:
            self._connection = None

    def _speak(self) -> bool:
        if self._quiet:
            return False
        rng = self.rng
        self.scheduler.after(1 + int(rng.random() * 2 * self._pause_ms), self._speak)
        self.counters["hostile"] += 1
        if self._connection is None or rng.random() < 0.05:
            self._connection = self.link.dial(self._deliver)
            self._send("live", self._hello(honest=rng.random() < 0.7))
            return True
        kind = rng.choice(_LIES)
        kind(self)
        return True

    def _deliver(self, connection: Connection, way: Way, message: Any) -> bool:
        if way is Way.UP:
            return self.cloud.receive(self.name, connection, message)
        if connection is not self._connection:
            return False
        if isinstance(message, Welcome):
            self._session = message.session
        elif not isinstance(message, LiveAck | BackfillAck):
            self._connection = None  # refused: it tries again
        return True

    def _send(self, stream: str, message: Any) -> None:
        if self._connection is not None:
            self._connection.send(Way.UP, stream, message)

    # --- what it says ----------------------------------------------------------------------------

    def _hello(self, *, honest: bool) -> Hello:
        if honest:
            return Hello(head=self._next_seq - 1, lineage=self._lineage, boot_id=b"h" * 16, sent_through=self._next_seq)
        rng = self.rng
        return Hello(
            head=rng.choice(_HEADS),
            lineage=rng.choice((None, self._lineage, self._invented, *self._lineages())),
            journal_bytes=rng.choice((-1, 0, 10, 2**70)),
            boot_id=rng.choice((b"", b"h" * 16, rng.randbytes(16))),
            sent_through=rng.choice(_HEADS),
            earlier=((rng.randbytes(16), rng.choice(_HEADS)),),
            lost=tuple(rng.sample(_SPANS, rng.randrange(3))),
            void=tuple(rng.sample(_SPANS, rng.randrange(3))),
        )

    def _block(self, seqs: range, *, producer: bytes | None = None) -> MadeBlock:
        rows = [(START_US + seq, 0x09F80100, self.rng.randbytes(8)) for seq in seqs]
        return encode_frames(FrameColumns.from_rows(rows), base_seq=seqs.start, producer=producer or self._lineage)

    def _say(self, seqs: range, block: MadeBlock) -> None:
        session = self._session if self.rng.random() < 0.9 else self.rng.choice((-1, 0, 2**70, self._session + 1))
        if self.rng.random() < 0.5:
            self._send("live", LiveData(session=session, seqs=seqs, block=block))
        else:
            self._send("backfill", BackfillData(session=session, seqs=seqs, block=block))

    def _frames(self) -> range:
        return range(self._next_seq, self._next_seq + self.rng.randrange(1, 9))

    def _speak_the_truth(self) -> None:
        seqs = self._frames()
        self._next_seq = seqs.stop + (self.rng.random() < 0.1)
        self._say(seqs, self._block(seqs))

    def _lie_about_seqs(self) -> None:
        seqs = self._frames()
        claimed = self.rng.choice((range(seqs.start, seqs.stop + 3), range(seqs.start + 1, seqs.stop + 1), *_SPANS))
        self._say(claimed, self._block(seqs))

    def _lie_about_lineage(self) -> None:
        seqs = self._frames()
        self._say(seqs, self._block(seqs, producer=self.rng.choice((self._invented, *self._lineages()))))

    def _say_again_with_other_frames(self) -> None:
        start = max(1, self._next_seq - self.rng.randrange(20))
        seqs = range(start, start + self.rng.randrange(1, 9))
        self._say(seqs, self._block(seqs))

    def _send_nonsense(self) -> None:
        seqs = self._frames()
        raw = self.rng.randbytes(self.rng.randrange(1, 200))
        kind = self.rng.choice((BlockKind.FRAMES, BlockKind.FOREIGN, BlockKind.CONTROL, BlockKind.MESSAGES))
        block = make_block(
            raw,
            kind=kind,
            form=self.rng.randrange(5),
            record_count=len(seqs),
            base_seq=seqs.start,
            producer=self._lineage,
        )
        self._say(seqs, block)

    def _send_a_bomb(self) -> None:
        """A small body that inflates beyond the limit."""
        self.counters["bomb"] += 1
        seqs = self._frames()
        self._say(seqs, _bomb(seqs.start, len(seqs), self._lineage))

    def _flood(self) -> None:
        for _ in range(self.rng.randrange(2, 30)):
            self._speak_the_truth()

    def _say_other_things(self) -> None:
        session, rng = self._session, self.rng
        seqs, head = rng.choice(_SPANS), rng.choice(_HEADS)
        message = rng.choice(
            (
                BackfillGone(session=session, seqs=seqs),
                BackfillGone(session=session - 1, seqs=seqs),
                BackfillDone(session=session),
                LiveStatus(session=session, head=head, journal_bytes=head),
                self._hello(honest=False),
            )
        )
        self._send(rng.choice(("live", "backfill")), message)


@functools.lru_cache(maxsize=64)
def _bomb(base_seq: int, count: int, producer: bytes) -> MadeBlock:
    return make_block(
        bytes(2 * MIB),
        kind=BlockKind.FRAMES,
        form=FrameForm.PLAIN,
        record_count=count,
        codec=Codec.ZSTD,
        base_seq=base_seq,
        producer=producer,
        limits=BlockLimits(),
    )


_LIES: Final = (
    HostileBoat._speak_the_truth,
    HostileBoat._speak_the_truth,
    HostileBoat._lie_about_seqs,
    HostileBoat._lie_about_lineage,
    HostileBoat._say_again_with_other_frames,
    HostileBoat._send_nonsense,
    HostileBoat._send_a_bomb,
    HostileBoat._flood,
    HostileBoat._say_other_things,
)
