"""One commit of a store: what many channels have waiting goes to the disk with one write and one sync.

Small blocks go to the write-ahead file; a channel with a large one is written straight to its segment, which is
synced instead (S1). With `by_policy` a channel whose fsync option is weaker than "always" is written and not
waited for: all its blocks, large ones too, go to the write-ahead file, which has one order for everything, so
that a power cut takes a tail of the channel and never a piece out of its middle.

Refused blocks are taken back; blocks that earlier commits acked stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.blocks.block import Block
from tidelog.errors import DiskError, DiskFull, LogClosed, LogError
from tidelog.storage.disk import Buffer
from tidelog.storage.log.options import Fsync
from tidelog.storage.store.open_channels import OpenChannels
from tidelog.storage.store.parts import StoreChannel
from tidelog.storage.store.wal import WalEntryKind, WalWriter
from tidelog.units import US_PER_MS

_REFUSALS_MAX = 16
"""How many channels are tried alone on a full disk, where each attempt may fail."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What one channel has for the write-ahead file."""

    channel: StoreChannel
    entries: list[Buffer]
    hint: bool
    """Its segment is synced already; the entry only records that."""
    wait: bool
    """The commit waits for the sync."""


def commit_blocks(
    store: OpenChannels, appends: Sequence[tuple[StoreChannel, Sequence[Block]]], now_us: int
) -> list[LogError | None]:
    """Stage and commit as each channel's fsync option asks; returns why each was refused, or None."""
    touched: dict[int, StoreChannel] = {}
    errors: list[LogError | None] = []
    for channel, blocks in appends:
        error = _stage_all(store, channel, blocks)
        errors.append(error)
        if error is None and blocks:
            touched[channel.channel_id] = channel
    refusals = commit_channels(store, list(touched.values()), now_us, by_policy=True)
    if not refusals:
        return errors
    return [error or refusals.get(channel.channel_id) for error, (channel, _) in zip(errors, appends, strict=True)]


def _stage_all(store: OpenChannels, channel: StoreChannel, blocks: Sequence[Block]) -> LogError | None:
    """Stage stamped blocks of one channel, all of them or none; returns why not."""
    log, count = channel.log, len(channel.waiting)
    start = log.log_end if log is not None else 0
    try:
        store.check_usable()
        if log is None:
            raise LogClosed(log=channel.name)
        log.check_usable()
        for block in blocks:
            channel.waiting.append(log.stage_stamped(block))
    except LogError as error:
        if log is not None and len(channel.waiting) > count:
            log.truncate(start)
        del channel.waiting[count:]
        return error
    return None


def commit_channels(
    store: OpenChannels, touched: list[StoreChannel], now_us: int, *, by_policy: bool
) -> dict[int, LogError]:
    """Commit what waits in these channels. Returns those that were refused, and why."""
    refusals: dict[int, LogError] = {}
    if not touched:
        return refusals
    try:
        wal = store.wal(now_us)
    except LogError as error:
        return {channel.channel_id: _refuse(channel, error) for channel in touched}
    parts: list[_Part] = []
    for channel in touched:
        part = _part(store, wal, channel, now_us, by_policy=by_policy)
        if isinstance(part, LogError):
            refusals[channel.channel_id] = part
        else:
            parts.append(part)
    written = _write(store, wal, parts, refusals)
    if written:
        _settle(store, written, refusals, now_us)
    store.committed(now_us)
    return refusals


def _part(
    store: OpenChannels, wal: WalWriter, channel: StoreChannel, now_us: int, *, by_policy: bool
) -> _Part | LogError:
    assert channel.log is not None
    wait = not by_policy or channel.log.options.fsync is Fsync.ALWAYS
    large = store.options.large_block_bytes
    # The write-ahead file's unsynced bytes, such as a creation, must be durable before what is synced elsewhere.
    may_go_directly = wait and channel.entered and not store.awaits_sync(channel)
    if may_go_directly and any(block.size >= large for block in channel.waiting):
        refusal = _commit_directly(store, channel, now_us)
        if refusal is not None:
            return refusal
        hint = wal.other_entry(WalEntryKind.DIRECT, channel.channel_id, {"end": channel.log.durable_end})
        return _Part(channel, [hint], hint=True, wait=False)
    entries: list[Buffer] = []
    if not channel.entered:
        entries += [wal.other_entry(WalEntryKind.CREATE, channel.channel_id, channel.creation())] * 2
    for block in channel.waiting:
        entries.extend(wal.block_entry(block))
    return _Part(channel, entries, hint=False, wait=wait)


def _commit_directly(store: OpenChannels, channel: StoreChannel, now_us: int) -> LogError | None:
    """Write what is staged to the segment and sync that instead (S1)."""
    log = channel.log
    assert log is not None
    try:
        log.flush(now_us)
        log.sync()
    except LogError as error:
        return _refuse(channel, error)
    store.count_sync()
    channel.clean = False
    channel.synced_end = log.written_end
    channel.waiting.clear()
    channel.unsynced.clear()
    return None


def _write(store: OpenChannels, wal: WalWriter, parts: list[_Part], refusals: dict[int, LogError]) -> list[_Part]:
    """Write the parts, all at once; if there is not room for all, each that there is room for."""
    error = _write_some(store, wal, parts)
    if error is None:
        return parts
    written: list[_Part] = []
    failures = 0
    for part in parts:
        if isinstance(error, DiskFull) and len(parts) > 1 and failures < _REFUSALS_MAX and not wal.undo_failed:
            refusal = _write_some(store, wal, [part])
            if refusal is None:
                written.append(part)
                continue
            failures, error = failures + 1, refusal
        if not part.hint:
            refusals[part.channel.channel_id] = _refuse(part.channel, error)
    return written


def _write_some(store: OpenChannels, wal: WalWriter, parts: list[_Part]) -> DiskError | None:
    entries = [entry for part in parts for entry in part.entries]
    if not entries:
        return None
    try:
        store.reserve.check(wal.path, sum(map(len, entries)))
        wal.write(entries)
    except DiskError as error:
        if wal.undo_failed:
            store.poison(f"{error}, which could not be undone")
        return error
    return None


def _settle(store: OpenChannels, parts: list[_Part], refusals: dict[int, LogError], now_us: int) -> None:
    for part in parts:
        if not part.hint:
            _written(store, part.channel, now_us, wait=part.wait)
    # Entries that are only hints are synced with the next commit, at the latest after a second: until then damage in
    # their blocks would pass for a torn write.
    if not any(part.wait for part in parts) and not store.hints_are_due(now_us, any(part.hint for part in parts)):
        return
    try:
        store.sync_wal()
    except DiskError as error:
        store.poison(str(error))
        refusals.update({part.channel.channel_id: error for part in parts})


def _written(store: OpenChannels, channel: StoreChannel, now_us: int, *, wait: bool) -> None:
    log = channel.log
    assert log is not None
    sync_by_us = None
    if not wait and log.options.fsync is Fsync.INTERVAL:
        sync_by_us = now_us + log.options.fsync_interval_ms * US_PER_MS
    store.note_written(channel, channel.waiting[-1].offsets.stop, sync_by_us)
    channel.clean = False
    channel.unsynced += channel.waiting
    channel.waiting.clear()
    store.enter(channel)


def _refuse(channel: StoreChannel, error: LogError) -> LogError:
    """Take back the blocks of this commit only; what earlier commits acked stays."""
    log = channel.log
    assert log is not None
    first = channel.waiting[0].leader.base_offset
    channel.waiting.clear()
    try:
        log.truncate(first)
    except LogError as failure:
        log.poison(f"{error}, then {failure}")
    return error
