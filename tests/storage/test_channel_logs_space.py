"""A store that is opened on a disk without room: found by the chaos of tests/cluster/test_channel_chaos.py."""

from __future__ import annotations

from tests.storage.test_channel_logs import NOW, block, config, contents, new_disk, opened, take
from tidelog.units import KIB, MIB


def test_want_of_space_at_the_start_is_no_doubt_about_what_was_synced() -> None:
    """Else every copy of a node that comes back on a full disk would count as one that may have lost records (R5)."""
    disk = new_disk()
    logs = opened(disk, copy_bytes_max=MIB)
    logs.open(config(1), NOW)
    for place in range(400):
        take(logs, block(1, 2 * place, size=2 * KIB))
    before = contents(logs, 1)
    disk.crash()
    disk.faults.capacity_bytes = disk._used_bytes + 64 * KIB
    logs = opened(disk, reserve_bytes=MIB, copy_bytes_max=0)
    assert [channel.relogged is not None for channel in logs._store.channels.values()] == [True]
    assert logs.verified
    logs.open(config(1), NOW)
    assert contents(logs, 1) == before
