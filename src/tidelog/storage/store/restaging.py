"""Giving a channel's log the blocks that only the write-ahead files hold, and placeholders where they are gone."""

from __future__ import annotations

from tidelog.blocks.block import missing_block
from tidelog.storage.log.log import Log
from tidelog.storage.store.parts import StoreChannel

_GAP_RECORDS_MAX = 2**32 - 1


def restage(channel: StoreChannel, log: Log, now_us: int) -> None:
    """Stage what the segments lack. A gap (damage in the write-ahead file) becomes a placeholder."""
    for block in channel.unsynced:
        if block.offsets.stop <= log.log_end:
            continue
        channel.gap_staged |= stage_gap(log, block.leader.base_offset, now_us)
        log.stage_stamped(block)
    channel.gap_staged |= stage_gap(log, channel.entered_end, now_us)
    channel.entered_end = 0
    log.note_durable(log.log_end)
    channel.unsynced = list(log.staged_blocks())
    channel.synced_end = log.written_end


def stage_gap(log: Log, end: int, now_us: int) -> bool:
    """Placeholders for everything from the log end to `end`; returns whether there is any."""
    start = log.log_end
    while log.log_end < end:
        gap = missing_block(
            offsets=range(log.log_end, min(end, log.log_end + _GAP_RECORDS_MAX)),
            channel_id=log.channel_id,
            leader_epoch=log.epochs.newest,
            append_time_us=now_us,
            durable_end=log.log_end,
        )
        log.stage_stamped(gap)
    return log.log_end > start
