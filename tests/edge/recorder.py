"""A process that records 2,000 frames a second and says how far it got, until somebody kills it.

Each line it prints is `now_us head durable_head`. A frame's payload names its round and its seq.
"""

from __future__ import annotations

import os
import struct
import sys
import time

from tidelog.edge.journal.journal import JournalOptions, open_journal
from tidelog.storage.os_disk import OsDisk

FRAMES_PER_S = 2_000
TICK_S = 0.01
PAYLOAD = struct.Struct("<IQ")


def can_id(seq: int) -> int:
    return 0x09F80100 + seq % 31


def main(folder: str, number: int) -> None:
    journal = open_journal(
        OsDisk(folder),
        "journal",
        now_us=now_us(),
        new_lineage=lambda: os.urandom(16),
        options=JournalOptions(seal_frames=1_000, seal_age_ms=1_000, lease_seqs=1_000),
    )
    first, started_us = journal.head + 1, now_us()
    say(started_us, journal.head, journal.durable_head)
    while True:
        time.sleep(TICK_S)  # the pace of the bus, not a wait for luck
        current_us = now_us()
        due = first + (current_us - started_us) * FRAMES_PER_S // 1_000_000
        for seq in range(journal.head + 1, due):
            journal.record(current_us, can_id(seq), PAYLOAD.pack(number, seq), current_us)
        if current_us >= journal.wake_at_us():
            journal.wake(current_us)
        say(current_us, journal.head, journal.durable_head)


def now_us() -> int:
    return time.time_ns() // 1000


def say(*numbers: int) -> None:
    # One write, unbuffered: what was said was said before the process died.
    os.write(1, (" ".join(map(str, numbers)) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
