"""The expected content of a store, as plain lists: the oracle of the store simulation.

The model knows nothing of files. It remembers what each channel has acked, what was asked for and never answered
because the power failed, and which bytes the disk was made to corrupt. The numbers of the checks (SW1 to SW6) are those
of `tidelog.sim.store.world`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.blocks.block import Block
from tidelog.errors import DamagedRange, LogError
from tidelog.sim.seeds import WorldBroken
from tidelog.storage.log.log import Log
from tidelog.storage.log.parts import Segment
from tidelog.storage.log.segment import SEGMENT_HEAD_BYTES
from tidelog.storage.log.writer import Append
from tidelog.storage.store.store import Store


class StoreBroken(WorldBroken):
    """A check failed; the world adds the seed."""


@dataclass(slots=True, kw_only=True)
class PlacedBlock:
    start: int
    stop: int
    epoch: int
    made: bytes
    """The maker's half and the body."""
    whole: bytes | None = None
    """All of it, once it was seen: a leader's stamp is not known before."""
    spoilt: bool = False
    """Its bytes were damaged on disk, so it may be reported as such."""
    in_wal: bool = False
    """A flip in a write-ahead file may have hit it."""
    covered: bool = False
    """The disk remembers outside of the write-ahead files that it was durable (SW7)."""

    @classmethod
    def of(cls, append: Append) -> PlacedBlock:
        offsets, block = append.offsets, append.block
        if isinstance(block, Block):
            made, epoch, whole = block.made(), block.leader.leader_epoch, block.tobytes()
        else:
            made, epoch, whole = block, append.epoch, None
        return cls(start=offsets.start, stop=offsets.stop, epoch=epoch, made=b"".join(made.buffers), whole=whole)

    @property
    def size(self) -> int:
        return len(self.made) + 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What was begun and perhaps not finished."""

    action: str
    name: str = ""
    offset: int = 0


class StoreChannelModel:
    def __init__(self, name: str, channel_id: int) -> None:
        self.name = name
        self.channel_id = channel_id
        self.epoch = 1
        self.blocks: list[PlacedBlock] = []
        self.doubtful: list[PlacedBlock] = []
        """Refused in a way that leaves open whether they are there."""
        self.start = 0
        self.base = 0
        """Where the log ends while it holds nothing."""
        self.covered = False
        """Its creation is remembered, as with blocks (SW7)."""
        self.truncated = False
        """Something was taken back from it in this run."""

    @property
    def end(self) -> int:
        return self.blocks[-1].stop if self.blocks else self.base

    def acked(self, append: Append) -> None:
        block = PlacedBlock.of(append)
        if block.start != self.end:
            raise StoreBroken(f"SW4: {self.name} ends at {self.end} and the next record got offset {block.start}")
        self.blocks.append(block)

    def in_doubt(self, append: Append) -> None:
        if append.offsets:
            self.doubtful.append(PlacedBlock.of(append))

    def boundaries(self) -> list[int]:
        return [block.start for block in self.blocks] + [self.end]

    def truncate(self, offset: int) -> None:
        self.truncated = True
        self.blocks = [block for block in self.blocks if block.start < offset]
        if not self.blocks:
            self.base = offset
        self.doubtful.clear()

    def trim(self, start: int) -> None:
        self.base = self.end
        self.start = start
        self.blocks = [block for block in self.blocks if block.stop > start]

    def block_in(self, segment: Segment, position: int) -> PlacedBlock | None:
        """The block whose bytes lie at this position, if nothing in the segment is damaged already."""
        inside = [block for block in self.blocks if block.start >= segment.base_offset]
        inside = [block for block in inside if block.stop <= segment.index.end_offset]
        if any(block.spoilt for block in inside):
            return None
        end = SEGMENT_HEAD_BYTES
        for block in inside:
            end += block.size
            if position < end:
                return block
        return None


class StoreModel:
    def __init__(self) -> None:
        self.channels: dict[str, StoreChannelModel] = {}
        self.deleted_names: set[str] = set()
        self.used_ids: set[int] = set()
        self.incarnation = 0
        self.poisoned = False
        self.intent: Intent | None = None
        self.losses_allowed = 0
        """Blocks that flips in write-ahead files may have cost."""
        self.checks = 0

    def expect(self, holds: bool, problem: str) -> None:
        self.checks += 1
        if not holds:
            raise StoreBroken(problem)

    # --- what was done ---------------------------------------------------------------------------

    def created(self, name: str, channel_id: int) -> None:
        self.expect(channel_id not in self.used_ids, f"SW3: channel id {channel_id} was used before")
        self.expect(name not in self.channels, f"SW3: {name} was created twice")
        self.used_ids.add(channel_id)
        self.channels[name] = StoreChannelModel(name, channel_id)

    def deleted(self, name: str) -> None:
        del self.channels[name]
        self.deleted_names.add(name)

    def spoil_wal(self, store: Store) -> None:
        """One entry of the write-ahead file was damaged: one block that is nowhere else may be lost."""
        self.losses_allowed += 1
        for channel in self.channels.values():
            for block in channel.blocks:
                block.in_wal |= block.start >= store.channels[channel.name].synced_end

    def cover(self) -> None:
        """Everything that was acked so far is remembered outside of the write-ahead files (SW7)."""
        for channel in self.channels.values():
            channel.covered = True
            for block in channel.blocks:
                block.covered = True

    # --- after an opening ------------------------------------------------------------------------

    def opened(self, store: Store, now_us: int, attempts: int) -> None:
        """Compare the store's content with the expected one, and adopt what was left open."""
        rise = store.incarnation - self.incarnation
        self.expect(1 <= rise <= attempts, f"SW4: the incarnation rose by {rise} in {attempts} openings")
        self.incarnation = store.incarnation
        self.poisoned = False
        self._settle_names(store)
        for channel in self.channels.values():
            self._settle_channel(channel, store.log(channel.name, now_us=now_us))
        self.intent = None
        self.losses_allowed = 0

    def _settle_names(self, store: Store) -> None:
        intent = self.intent
        for name in list(self.channels):
            if name not in store.channels:
                excused = intent is not None and intent.action == "delete" and intent.name == name
                self.expect(excused, f"SW3: channel {name} is gone")
                self.deleted(name)
        for name, found in store.channels.items():
            if name not in self.channels:
                excused = intent is not None and intent.action == "create" and intent.name == name
                self.expect(excused, f"SW3: channel {name} is back, or was never created")
                self.created(name, found.channel_id)
            self.expect(found.channel_id == self.channels[name].channel_id, f"SW3: {name} changed its id")

    def _settle_channel(self, channel: StoreChannelModel, log: Log) -> None:
        intent = self.intent
        if intent is not None and intent.action == "trim" and log.log_start != channel.start:
            self.expect(log.log_start in channel.boundaries(), f"{channel.name} starts inside a block")
            channel.trim(log.log_start)
        self.expect(log.log_start == channel.start, f"{channel.name} starts at {log.log_start}, not {channel.start}")
        if (
            log.log_end < channel.end
            and intent is not None
            and (intent.action, intent.name)
            == (
                "truncate",
                channel.name,
            )
        ):
            self.expect(log.log_end >= intent.offset, f"SW1: {channel.name} was truncated too far")
            self.expect(log.log_end in channel.boundaries(), f"{channel.name} ends inside a block")
            channel.truncate(log.log_end)
        if channel.blocks and log.log_end == channel.blocks[-1].start and channel.blocks[-1].in_wal:
            self._lose(channel)
            channel.truncate(log.log_end)
        self.expect(log.log_end >= channel.end, f"SW1: {channel.name} ends at {log.log_end}, acked were {channel.end}")
        for block in channel.doubtful:
            if block.start == channel.end and block.stop <= log.log_end:
                channel.blocks.append(block)
        channel.doubtful.clear()
        self.expect(
            log.log_end == channel.end, f"SW2: {channel.name} ends at {log.log_end}, only {channel.end} were appended"
        )
        self.check_channel(channel, log)
        for block in channel.blocks:
            block.in_wal = False

    def _lose(self, channel: StoreChannelModel) -> None:
        self.losses_allowed -= 1
        self.expect(self.losses_allowed >= 0, f"SW1: {channel.name} lost more than the planted damage explains")

    # --- comparing -------------------------------------------------------------------------------

    def check_all(self, store: Store, now_us: int) -> None:
        self.expect(sorted(store.channels) == sorted(self.channels), "SW3: the store has other channels")
        for channel in self.channels.values():
            self.check_channel(channel, store.log(channel.name, now_us=now_us))

    def check_live(self, store: Store) -> None:
        """Cheap checks between events, of logs that are open anyway."""
        for channel in self.channels.values():
            log = store.channels[channel.name].log
            if log is None or channel.doubtful:
                continue
            self.expect(log.log_end == channel.end, f"SW4: {channel.name} ends at {log.log_end}, not {channel.end}")
            self.expect(log.durable_end == log.log_end, f"{channel.name} has records neither acked nor refused")

    def check_channel(self, channel: StoreChannelModel, log: Log) -> None:
        found: list[Block] = []
        for expected in channel.blocks:
            if expected.stop <= channel.start:
                continue
            if not found:
                try:
                    found = log.read(expected.start)
                except DamagedRange as damage:
                    self._check_damage(channel, expected, damage)
                    continue
            self._compare(channel, expected, found.pop(0))
        self.expect(not found, f"SW2: {channel.name} holds a record that was not appended")

    def _check_damage(self, channel: StoreChannelModel, expected: PlacedBlock, damage: DamagedRange) -> None:
        if expected.in_wal and not expected.spoilt:
            self._lose(channel)
            expected.spoilt = True
        self.expect(expected.spoilt, f"SW1: {channel.name} cannot read {expected.start}: {damage.problem}")

    def _compare(self, channel: StoreChannelModel, expected: PlacedBlock, block: Block) -> None:
        where = f"{channel.name} at {expected.start}"
        self.expect(block.offsets == range(expected.start, expected.stop), f"SW4: {where} holds {block.offsets}")
        self.expect(b"".join(block.made().buffers) == expected.made, f"SW1: {where} has other bytes")
        self.expect(block.leader.leader_epoch == expected.epoch, f"SW1: {where} has another epoch")
        self.expect(block.leader.channel_id == channel.channel_id, f"SW1: {where} holds another channel's block")
        whole = block.tobytes()
        self.expect(expected.whole in (None, whole), f"SW1: the stamp of {where} changed")
        expected.whole = whole


def stopped(log: Log) -> bool:
    """Whether the log takes no more appends."""
    try:
        log.check_usable()
    except LogError:
        return True
    return False
