"""The random settings of an uplink world: limits and journals."""

from __future__ import annotations

import random

from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.core.uplink.sender import SenderConfig
from tidelog.edge.journal.journal import JournalOptions
from tidelog.storage.log.options import Retention


def random_protocol(rng: random.Random) -> tuple[SenderConfig, ReceiverLimits]:
    """The seed's numbers, scaled down, so that a short run meets every limit."""
    lag = rng.choice((60, 150, 400))
    sender = SenderConfig(
        max_live_lag=lag,
        lag_check_interval=rng.choice((10, 40)),
        min_lag_reconnect_interval_ms=rng.choice((3_000, 30_000)),
        live_window_blocks=rng.choice((1, 2, 4)),
        live_block_frames_max=rng.choice((10, 40, 400)),
        backfill_window_blocks=rng.choice((1, 8)),
        backfill_bytes_per_s=rng.choice((None, None, 20_000)),
    )
    limits = ReceiverLimits(
        rate_frames_per_s=rng.choice((100, 300, 2_000)),
        burst_frames=rng.choice((20, 60, 500)),
        max_live_lag=rng.choice((lag // 2, lag, 4 * lag)),
        holes_told_max=rng.choice((1, 3, 1_000)),
        ring_frames=rng.choice((100, 400)),
    )
    return sender, limits


def random_journal(rng: random.Random) -> JournalOptions:
    flush_frames = rng.choice((16, 64))
    limited = rng.random() < 0.3
    return JournalOptions(
        flush_frames_max=flush_frames,
        buffer_frames_max=flush_frames * rng.choice((1, 8)),
        seal_frames=rng.choice((80, 250, 1_000)),
        seal_age_ms=rng.choice((5_000, 60_000)),
        lease_seqs=rng.choice((40, 100, 400)),
        zstd_level=1,
        disk_bytes_max=16_384 if limited else None,
        retention=Retention(max_age_ms=rng.choice((None, 30_000)), max_bytes=rng.choice((None, 10_000))),
        fresh_segment_bytes=4_096,
        sealed_segment_bytes=4_096,
        reserve_bytes=0,
    )
