"""Finding records by seq and time when neither rises with the offset (B2), and iterating while the log changes."""

from __future__ import annotations

from tests.storage.logs import fill, made, new_disk, opened


def test_searches_find_every_record_at_or_after_in_offset_order() -> None:
    """Backfill arrives after Live: neither seq nor time rises with the offset (B2)."""
    log = opened(new_disk(), index_interval_bytes=1)
    for seq, time_us in ((100, 100), (1, 1), (200, 50), (50, 200), (150, 10)):
        log.append(made(10, seq=seq, time_us=time_us), now_us=1)
        if seq == 200:
            log.roll(0)
    log.stage(made(10, seq=300, time_us=5), epoch=1, now_us=1)
    assert [block.maker.base_seq for block in log.blocks(from_seq=105)] == [100, 200, 150, 300]
    assert [block.maker.base_seq for block in log.blocks(from_seq=110)] == [200, 150, 300]
    assert [block.maker.base_seq for block in log.blocks(from_time_us=59)] == [100, 200, 50]
    assert [block.maker.base_seq for block in log.blocks(from_time_us=60)] == [100, 50]
    assert [block.maker.base_seq for block in log.blocks(from_seq=105, from_time_us=55)] == [100, 200]
    assert [block.maker.base_seq for block in log.blocks(20, 50, from_seq=1)] == [200, 50, 150]


def test_a_search_may_ask_for_one_producer() -> None:
    log = opened(new_disk())
    for number in (1, 2, 1):
        log.append(made(2, seq=10, producer=bytes([number] * 16)), now_us=1)
    assert [b.offsets.start for b in log.blocks(from_seq=1, producer=bytes([1] * 16))] == [0, 4]


def test_an_iteration_ends_where_the_log_was_cut_meanwhile() -> None:
    log = opened(new_disk(), segment_bytes_max=4096)
    fill(log, 60)
    seen = []
    for block in log.blocks():
        seen.append(block.offsets.stop)
        if len(log.segments) > 1:
            log.truncate(log.segments[0].index.end_offset)
    assert seen[-1] == log.log_end
