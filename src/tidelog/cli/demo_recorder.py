"""The demo's boat: a process of its own, so that it can be killed like one.

Journals a simulated voyage in real time and says on standard output, one JSON object a line, how far
the journal is durable. Started by `tidelog demo`; stops when its parent does.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid

from tidelog.edge.journal import JournalOptions, open_journal
from tidelog.edge.voyage import Voyage
from tidelog.storage.os_disk import OsDisk
from tidelog.units import US_PER_S

TICK_US = 10_000
TELL_US = 100_000


def main() -> None:
    folder, seed, start_us, frames_per_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    voyage = Voyage(seed=seed, start_us=start_us)
    options = JournalOptions(seal_age_ms=3_000)
    journal = open_journal(
        OsDisk(folder),
        "journal",
        now_us=time.time_ns() // 1000,
        new_lineage=lambda: uuid.uuid4().bytes,
        options=options,
    )
    # The bus of the voyage starts over where the journal's head is, so a frame's seq tells what it must be.
    began_us = time.time_ns() // 1000
    told_us = 0
    sailed_us = 0
    parent = os.getppid()
    while os.getppid() == parent:
        now_us = time.time_ns() // 1000
        until_us = now_us - began_us
        for time_us, can_id, payload in voyage.frames(
            start_us + sailed_us, start_us + until_us, frames_per_s=frames_per_s
        ).rows():
            journal.record(time_us, can_id, payload, now_us)
        sailed_us = until_us
        if now_us >= journal.wake_at_us():
            journal.wake(now_us)
        if now_us - told_us >= TELL_US:
            told_us = now_us
            print(json.dumps({"durable": journal.durable_head, "head": journal.head}), flush=True)
        time.sleep(max(0.0, (TICK_US - (time.time_ns() // 1000 - now_us)) / US_PER_S))


if __name__ == "__main__":
    main()
