"""The end of a store's world: it stops, its disk loses something that had been synced, and it is opened again.

SW7  A log that is shorter than what was acked, or a channel that is gone, is always reported (`synced_loss`), also by
     the next opening. Only acks since the mark was last synced may be lost unnoticed, and only after a power cut:
     nothing on the disk records them then. A store that lost nothing never reports a loss.
SW8  Whatever the disk lost, what can be read is what was written: never other bytes, never another channel's.
"""

from __future__ import annotations

import random
from collections import Counter
from enum import StrEnum

from tidelog.errors import DamagedRange, LogError
from tidelog.sim.disk import SimDisk
from tidelog.sim.lying import Lie, end_process, tell_lie
from tidelog.sim.store.model import StoreChannelModel, StoreModel
from tidelog.storage.log.segment import base_offset_of
from tidelog.storage.store.parts import CHANNELS_FOLDER, INTERNALS, WAL_FOLDER, StoreOptions
from tidelog.storage.store.recovery import open_store
from tidelog.storage.store.store import Store


class Stop(StrEnum):
    CLOSED = "closed"
    KILLED = "killed"
    POWER_CUT = "power_cut"


def stop_and_lie(
    store: Store, disk: SimDisk, rng: random.Random, model: StoreModel, options: StoreOptions, now_us: int
) -> Counter[str]:
    """Returns what happened, as counters. Raises `StoreBroken` through the model when a promise was broken."""
    happened: Counter[str] = Counter()
    stop = rng.choice(list(Stop))
    if stop is Stop.CLOSED:
        store.close(now_us)
    if stop is Stop.POWER_CUT:
        disk.crash()
    else:
        end_process(disk)
    if stop is not Stop.POWER_CUT:
        model.cover()
    folder = rng.choice((WAL_FOLDER, WAL_FOLDER, CHANNELS_FOLDER, INTERNALS))
    lie = rng.choice((None, *Lie))
    told = None if lie is None else tell_lie(disk, rng, folder, lie, choose=_counts)
    found = open_store(disk, now_us=now_us, options=options)
    missed = _compare(found, model, now_us)
    assert found.recovery is not None
    noticed, reason = found.recovery.synced_loss, found.recovery.synced_loss_reason
    what = f"{stop}, then {told or 'nothing'}"
    model.expect(noticed or not missed, f"SW7: after {what} nobody says that {missed[:3]} is gone")
    model.expect(bool(told) or not noticed, f"SW7: after {what} it is said that {reason}")
    happened[f"stopped_{stop}"] += 1
    if told:
        happened[f"lie_{lie}"] += 1
        happened["loss_noticed"] += noticed
        happened["loss_of_channels"] += bool(missed)
    if found.state.lost:
        found.close(now_us)
        again = open_store(disk, now_us=now_us, options=options)
        model.expect(bool(again.recovery and again.recovery.synced_loss), f"SW7: after {what} it is told only once")
        again.forget_loss()
        again.close(now_us)
        last = open_store(disk, now_us=now_us, options=options)
        model.expect(not last.state.lost, f"SW7: after {what} a loss that was dealt with is told again")
    return happened


def _counts(path: str) -> bool:
    """Not a channel's first segment: that it is gone looks like retention, and nothing here tells the two apart."""
    base = base_offset_of(path.rpartition("/")[2].removesuffix(".index"))
    return base != 0 and "/quarantine/" not in path


def _compare(store: Store, model: StoreModel, now_us: int) -> list[str]:
    """What was acked and covered, and is missing without the log showing it (SW7). Checks what can be read (SW8)."""
    missed = []
    for channel in model.channels.values():
        found = store.channels.get(channel.name)
        if found is None or found.channel_id != channel.channel_id:
            if channel.covered:
                missed.append(f"channel {channel.name!r}")
            continue
        try:
            log = store.log(channel.name, now_us=now_us)
        except LogError:
            continue  # a reader gets an error
        end = max((block.stop for block in channel.blocks if block.covered), default=0)
        if log.log_end < end:
            missed.append(f"{channel.name!r} from {log.log_end} to {end}")
        _check_bytes(model, channel, store, now_us)
    return missed


def _check_bytes(model: StoreModel, channel: StoreChannelModel, store: Store, now_us: int) -> None:
    log = store.log(channel.name, now_us=now_us)
    by_start = {block.start: block for block in channel.blocks}
    for expected in channel.blocks:
        if not log.log_start <= expected.start < log.log_end:
            continue
        try:
            block = log.read(expected.start, bytes_max=1)[0]
        except DamagedRange:
            continue
        wanted = by_start.get(block.leader.base_offset)
        same = wanted is not None and b"".join(block.made().buffers) == wanted.made
        # A truncation whose entry is gone may leave what it took back; it had been written, at least.
        known = same or (channel.truncated and block.leader.channel_id == channel.channel_id)
        model.expect(known, f"SW8: {channel.name} at {expected.start} holds other bytes")
