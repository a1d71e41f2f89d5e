"""One run of a boat's journal in the simulator: its disk, its clocks, and the driver that wakes it.

`JournalRun` opens the journal, lets time pass as a good (or late) driver would, and compares what it
finds with the `JournalModel` at every opening. What happens to the journal is decided by the world.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Final

from tidelog.edge.journal.journal import Journal, JournalOptions, open_journal
from tidelog.errors import DiskError, DiskFull, LogPoisoned, SyncFailed
from tidelog.sim.journal.model import JournalBroken, JournalModel
from tidelog.sim.power import PluggedDisk, PowerCut
from tidelog.storage.log.options import Retention

FOLDER: Final = "boat"
START_US: Final = 1_750_000_000_000_000
SECOND_US: Final = 1_000_000


class JournalRun:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.names = random.Random(f"names {seed}")
        """A generator of its own: the number of names that the journal draws must not change the run."""
        self.disk = PluggedDisk(random.Random(self.rng.getrandbits(64)))
        self.options = _random_options(self.rng)
        self.model = JournalModel()
        self.model.may_force_out = self.options.disk_bytes_max is not None
        self.model.may_trim_acked = self.model.may_force_out or self.options.retention != Retention()
        self.counters: Counter[str] = Counter()
        self.events = 0
        self.last_event = "open"
        self.true_us = 0
        self.clock_us = START_US
        """What the boat believes: `true_us` plus whatever its clock was set to."""
        self.late_us = 0
        """By how much `wake` came late in this run."""
        self.woken_us = 0
        self.refused = False
        """The disk has refused something in this run, so frames may wait in memory for longer."""
        self.disk_is_bad = False
        """Injected errors are expected."""
        self.meta_lost = False
        self.closed_head: int | None = None
        self.busy_ids = [self.rng.getrandbits(29) for _ in range(self.rng.choice((1, 3, 40)))]
        self.journal = self.open()

    # --- around every event ----------------------------------------------------------------------

    @property
    def checks(self) -> int:
        return self.model.checks

    def settle(self) -> None:
        """Take over the journal's statistics."""
        self.model.note_durable(self.journal)
        if self.refused:
            # On a full disk there may be no room for the record yet; the statistics have it.
            self.model.note_forced_lost(self.journal)
        if self.journal.statistics().forced_lost:
            self.counters["forced_out"] += 1

    def check(self) -> None:
        flushed = self.journal.statistics().frames_buffered == 0
        held = self.model.check(self.journal, everything_flushed=flushed)
        self.model.check_reading(self.journal, held)
        self.counters["damaged_fresh"] += bool(self.journal.fresh.damaged())
        self.counters["damaged_sealed"] += bool(self.journal.sealed.damaged())

    def restore(self) -> None:
        """The disk works again."""
        faults = self.disk.faults
        if faults.capacity_bytes is not None or faults.fail_after is not None:
            self.counters["healed_later"] += 1
        self.disk.cut_after = None
        faults.capacity_bytes = None
        faults.fail_after = None
        faults.fail_forever = False

    def open(self) -> Journal:
        """Open the journal, if need be a second time on a disk that works, and check all of it."""
        while True:
            try:
                journal = open_journal(
                    self.disk,
                    FOLDER,
                    now_us=self.clock_us,
                    new_lineage=lambda: self.names.randbytes(16),
                    options=self.options,
                )
                break
            except DiskError:
                if not self.disk_is_bad:
                    raise
                self.counters["open_failed"] += 1
                self.disk_is_bad, self.closed_head = False, None
                if self.rng.random() < 0.5:
                    self.disk.crash()
                self.restore()
            except PowerCut:
                self.counters["power_cut_in_open"] += 1
                self.closed_head = None
                self.disk.crash()
        self.journal = journal
        self.late_us, self.refused, self.disk_is_bad = 0, False, False
        self.woken_us = self.true_us
        self.restore()
        self.counters["void"] += bool(journal.statistics().void)
        self.check_opening(journal)
        return journal

    def check_opening(self, journal: Journal) -> None:
        if self.closed_head is not None and not self.meta_lost:
            self.counters["clean_open"] += 1
            if journal.statistics().void:
                raise JournalBroken(f"a clean close left void seqs: {journal.statistics().void}")
            if journal.head != self.closed_head:
                raise JournalBroken(f"the head is {journal.head} after a clean close at {self.closed_head}")
        self.model.check_numbering(journal)
        journal.flush(self.clock_us)  # what could not be written on a full disk can be written now
        self.closed_head, self.meta_lost = None, False
        self.check()

    # --- time ------------------------------------------------------------------------------------

    def pass_time(self, duration_us: int, *, late: bool = False) -> None:
        """Let time pass; wake when the journal asks for it, and at least once per flush interval."""
        end_us = self.true_us + duration_us
        interval_us = self.options.flush_interval_ms * 1000
        while True:
            asked_us = max(0, self.journal.wake_at_us() - self.clock_us)
            wait_us = min(asked_us, max(0, self.woken_us + interval_us - self.true_us))
            if self.true_us + wait_us > end_us:
                break
            if late:
                lateness_us = min(self.rng.randrange(1, 30 * SECOND_US), end_us - self.true_us - wait_us)
                wait_us += lateness_us
                self.late_us = max(self.late_us, lateness_us)
                self.counters["late_wake"] += 1
            step_us = max(wait_us, 1)
            self.true_us += step_us
            self.clock_us += step_us
            self.woken_us = self.true_us
            self.try_call(lambda: self.journal.wake(self.clock_us))
            if self.journal.wake_at_us() <= self.clock_us:
                raise JournalBroken("wake asks to be called again at once, for ever")
            self.check_waiting()
        self.clock_us += max(0, end_us - self.true_us)
        self.true_us = max(self.true_us, end_us)
        self.check_waiting()

    def check_waiting(self) -> None:
        """JJ4: on a disk that works, nothing waits in memory for longer than the flush interval."""
        self.model.note_durable(self.journal)
        oldest_us = self.model.oldest_waiting_us()
        allowed_us = self.options.flush_interval_ms * 1000 + self.late_us
        if oldest_us is not None and not self.refused and self.true_us - oldest_us > allowed_us:
            raise JournalBroken(f"JJ4: a frame has waited {self.true_us - oldest_us} us in memory")

    def try_call(self, call: Callable[[], object]) -> bool:
        """Call the journal; what a failing disk does to it is allowed, anything else is not."""
        sealed_end, log_start = self.journal.sealed.log_end, self.journal.log_start
        try:
            call()
        except DiskFull:
            self.counters["disk_full"] += 1
            self.refused = True
            return False
        except LogPoisoned:
            self.counters["poisoned"] += 1
            self.refused = True
            return False
        except DiskError as error:
            if not (self.disk_is_bad or self.refused):
                raise
            self.counters["sync_failure"] += isinstance(error, SyncFailed)
            self.refused = True
            return False
        finally:
            self.counters["seal"] += self.journal.sealed.log_end > sealed_end
            self.counters["retention"] += self.journal.log_start > log_start
        return True


def _random_options(rng: random.Random) -> JournalOptions:
    flush_frames = rng.choice((8, 16, 40))
    fresh_segment_bytes = rng.choice((4096, 8192, 1 << 20))
    limited = fresh_segment_bytes < 1 << 20 and rng.random() < 0.3
    retention = Retention(
        max_age_ms=rng.choice((None, None, 100_000)),
        max_bytes=rng.choice((None, None, 10_000)),
        max_events=rng.choice((None, None, 200)),
    )
    return JournalOptions(
        flush_interval_ms=1_000,
        flush_frames_max=flush_frames,
        buffer_frames_max=flush_frames * rng.choice((1, 4)),
        seal_frames=rng.choice((30, 100, 1000)),
        seal_age_ms=rng.choice((5_000, 60_000)),
        lease_seqs=rng.choice((1, 10, 50, 400)),
        disk_bytes_max=rng.choice((4, 6)) * fresh_segment_bytes if limited else None,
        retention=retention,
        retention_interval_ms=10_000,
        fresh_segment_bytes=fresh_segment_bytes,
        sealed_segment_bytes=rng.choice((4096, 8192, 1 << 20)),
        reserve_bytes=rng.choice((0, 0, 4096)),
    )
