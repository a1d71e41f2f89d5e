"""The expected content of a log, as a plain list of blocks: the oracle of the log simulation.

The model knows nothing of files. It remembers every block that was staged, what the log has promised to be durable, and
which bytes the disk was made to corrupt. After each recovery and at the end it compares:

ML1  What was promised is there, byte for byte, or is reported as damaged if its bytes were spoilt.
ML2  Nothing is there that was not appended, and nothing that was truncated, trimmed or refused.
ML3  Offsets continue each other; the end is the end of a block.
ML4  The epoch of every readable block is the one it was written with, and the history says so.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from tidelog.blocks.block import Block
from tidelog.errors import DamagedRange
from tidelog.sim.seeds import WorldBroken, WorldViolation
from tidelog.storage.log.log import Log


class Violation(WorldViolation):
    """The log broke a promise."""

    world = "log"


class LogBroken(WorldBroken):
    """A check failed; the world adds the seed."""


@dataclass(slots=True, kw_only=True)
class PlacedInLog:
    """A block that the log was given."""

    start: int
    stop: int
    epoch: int
    mark: int
    """The sync mark in its header."""
    data: bytes
    promised: bool = False
    """The log said that it is durable."""
    spoilt: bool = False
    """Its bytes on disk may be wrong, so it may turn out to be damaged."""
    damaged: bool = False
    """The log has reported it as damaged."""

    @classmethod
    def of(cls, block: Block) -> PlacedInLog:
        offsets, leader = block.offsets, block.leader
        return cls(
            start=offsets.start,
            stop=offsets.stop,
            epoch=leader.leader_epoch,
            mark=min(leader.durable_end, leader.base_offset),
            data=block.tobytes(),
        )


class LogModel:
    def __init__(self) -> None:
        self.blocks: list[PlacedInLog] = []
        self.base = 0
        """Where the log ends while it holds nothing."""
        self.checks = 0
        self.trimmed_to: int | None = None
        """A trim to here failed, so the log may start anywhere up to here."""
        self.clean = False
        """The log was closed properly, so it knows its end and takes nothing for torn."""
        self.newest_base = 0
        """First offset of the segment that may be torn."""

    @property
    def start(self) -> int:
        return self.blocks[0].start if self.blocks else self.base

    @property
    def end(self) -> int:
        return self.blocks[-1].stop if self.blocks else self.base

    @property
    def promised_end(self) -> int:
        return max((block.stop for block in self.blocks if block.promised), default=self.start)

    def expect(self, holds: bool, problem: str) -> None:
        self.checks += 1
        if not holds:
            raise LogBroken(problem)

    # --- what happened -----------------------------------------------------------------------------

    def add(self, block: Block) -> None:
        placed = PlacedInLog.of(block)
        self.expect(placed.start == self.end, f"ML3: a block got offset {placed.start}, the log ended at {self.end}")
        self.blocks.append(placed)

    def promise(self, end: int) -> None:
        for block in reversed(self.blocks):
            if block.promised:
                break
            block.promised = block.stop <= end

    def truncate(self, offset: int) -> None:
        if offset < self.end:
            self.base = max(self.start, offset)
            del self.blocks[bisect_left(self.blocks, offset, key=_start) :]

    def take_promises_back(self, offset: int) -> None:
        """A truncation failed half way: what it should have removed may be gone or not."""
        for block in self.blocks:
            if block.stop > offset:
                block.promised = False

    def trim(self, offset: int) -> None:
        self.base = max(self.base, self.end)
        del self.blocks[: bisect_left(self.blocks, offset, key=_start)]
        self.trimmed_to = None

    def spoil(self, offsets: range) -> None:
        for block in self.at(offsets):
            block.spoilt = True

    def at(self, offsets: range) -> list[PlacedInLog]:
        """The blocks that hold any of these offsets."""
        first = max(0, bisect_right(self.blocks, offsets.start, key=_start) - 1)
        last = bisect_left(self.blocks, offsets.stop, key=_start)
        return [block for block in self.blocks[first:last] if block.stop > offsets.start]

    def boundaries(self) -> list[int]:
        return [block.start for block in self.blocks] + [self.end]

    # --- comparing ---------------------------------------------------------------------------------

    def required_end(self) -> int:
        """How far a recovered log must reach at least.

        Spoilt bytes above the last sync mark that can still be read look like a torn write, and the log
        is cut there (B4). Everywhere else spoilt bytes are damage and shorten nothing.
        """
        promised_end = self.promised_end
        if self.clean:
            return promised_end
        good = (block for block in self.blocks if block.promised and not block.spoilt and not block.damaged)
        sync_point = max((block.mark for block in good), default=0)
        for block in self.blocks:
            if block.spoilt and block.start >= max(self.newest_base, sync_point):
                return min(promised_end, block.start)
        return promised_end

    def recovered(self, log: Log, *, complete_to: int | None) -> None:
        """Compare a log that was just opened, and take over what it kept."""
        self._check_start(log.log_start)
        required, end = self.required_end(), self.end
        found = log.log_end
        self.expect(found >= required, f"ML1: the log ends at {found}, {required} was promised")
        self.expect(found <= end, f"ML2: the log ends at {found}, only {end} were appended")
        self.expect(found in self.boundaries() or not self.blocks, f"ML3: the log ends at {found}, inside a block")
        if complete_to is not None:
            self.expect(found >= complete_to, f"ML1: the log ends at {found}, but no power cut came and {complete_to}")
        self.expect(log.durable_end == found, "LLO1: an opened log must be durable up to its end")
        for block in self.blocks:
            # What was never durable may have been torn below a sync mark that a peer's block brought.
            block.spoilt = block.spoilt or not block.promised
        self.truncate(found)
        self.clean = False
        self.compare(log)
        for block in self.blocks:
            block.promised = True

    def _check_start(self, found: int) -> None:
        if self.trimmed_to is None:
            self.expect(found == self.start, f"ML1: the log starts at {found}, it should at {self.start}")
            return
        allowed = [offset for offset in self.boundaries() if offset <= self.trimmed_to]
        self.expect(found in allowed, f"ML1: the log starts at {found} after a trim to {self.trimmed_to}")
        self.trim(found)

    def compare(self, log: Log) -> None:
        """Read everything."""
        self.expect(log.log_start == self.start, f"ML1: the log starts at {log.log_start}, it should at {self.start}")
        self.expect(log.log_end == self.end, f"ML3: the log ends at {log.log_end}, it should at {self.end}")
        offset = log.log_start
        while offset < log.log_end:
            offset = self.compare_at(log, offset)
        self._check_damaged(log)
        self._check_epochs(log)

    def compare_at(self, log: Log, offset: int) -> int:
        """Read once from `offset` and compare; returns where to go on."""
        try:
            found = log.read(offset, bytes_max=4096)
        except DamagedRange as damage:
            self.expect(damage.start == offset < damage.end, "ML3: a damaged range does not hold the offset asked for")
            self.note_damage(range(damage.start, damage.end))
            return damage.end
        self.expect(bool(found), f"ML3: nothing is read at {offset}")
        for block in found:
            held = self.at(range(offset, offset + 1))
            self.expect(bool(held), f"ML2: offset {offset} should not be there")
            self.expect(block.tobytes() == held[0].data, f"ML1: other bytes are read at {offset} than were written")
            held[0].spoilt = held[0].damaged = False
            offset = block.offsets.stop
        return offset

    def note_damage(self, offsets: range) -> None:
        for block in self.at(offsets):
            self.expect(block.spoilt or block.damaged, f"ML1: [{block.start}, {block.stop}) is said to be damaged")
            block.damaged, block.spoilt = True, False

    def _check_damaged(self, log: Log) -> None:
        gone = log.damaged()
        for part in gone:
            inside = all(block.damaged for block in self.at(part))
            self.expect(inside, f"ML1: [{part.start}, {part.stop}) has a placeholder and was read all the same")
        held = sum(len(part) for part in gone)
        known = sum(block.stop - block.start for block in self.blocks if block.damaged)
        self.expect(held == known, f"ML1: {held} offsets have placeholders, {known} are damaged")

    def _check_epochs(self, log: Log) -> None:
        for block in self.blocks:
            if not block.damaged:
                found = log.epochs.epoch_at(block.start)
                self.expect(found == block.epoch, f"ML4: offset {block.start} has epoch {block.epoch}, not {found}")
        if self.blocks and not any(block.damaged for block in self.blocks):
            pairs: list[tuple[int, int]] = []
            for block in self.blocks:
                if not pairs or block.epoch > pairs[-1][0]:
                    pairs.append((block.epoch, block.start))
            self.expect(log.epochs.pairs() == pairs, f"ML4: the epochs are {pairs}, not {log.epochs.pairs()}")


def _start(block: PlacedInLog) -> int:
    return block.start
