"""What the uplink service does about a boat's log that stopped."""

from __future__ import annotations

from pathlib import Path

from tidelog.blocks.messages import Message, encode_messages
from tidelog.cluster.uplink_service import UplinkService
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.storage.options import LogOptions
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store import StoreOptions, open_store
from tidelog.storage.writer import Append, Committer, wall_clock_us


def test_a_log_that_stopped_is_opened_anew_and_verified_at_the_next_handshake(tmp_path: Path) -> None:
    options = StoreOptions(log=LogOptions(reserve_bytes=0))
    store = open_store(OsDisk(tmp_path), now_us=wall_clock_us(), options=options)
    committer = Committer(store)
    try:
        limits = ReceiverLimits()
        service = UplinkService(store=store, committer=committer, limits=limits, new_lineage=lambda: bytes(16))
        log = service._open_or_create("boat-001").log
        block = encode_messages([Message(time_us=1, value=b"kept")])
        assert committer.commit(Append(log, block, epoch=1)) == range(0, 1)
        log.poison("a failed sync")
        again = service._open_or_create("boat-001").log
        assert again is not log
        assert committer.commit(Append(again, block, epoch=1)) == range(1, 2)
        assert again.log_end == 2
    finally:
        committer.close()
