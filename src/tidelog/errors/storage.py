"""Errors of what is stored: configuration, records, bytes, the disk, logs, the store and the journal."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.errors.base import LogError

# --- what a caller passed in -----------------------------------------------------------------------


class InvalidConfig(LogError):
    """A configuration section has values that cannot work. All problems are listed at once."""

    code = "invalid_config"

    def __init__(self, *, section: str, problems: Sequence[str]) -> None:
        super().__init__(f"{section}: " + "; ".join(problems))
        self.section = section
        self.problems = list(problems)


class InvalidRecord(LogError):
    """A record cannot be written as given: too long, out of range, or the columns disagree."""

    code = "invalid_record"

    def __init__(self, *, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


# --- bytes that are not what they claim to be ------------------------------------------------------


class BadBlock(LogError):
    """Bytes that should be a block are not one. Base of the three reasons below."""

    code = "bad_block"

    def __init__(self, *, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class BlockTruncated(BadBlock):
    """The bytes end before the block does."""

    code = "block_truncated"


class BlockCorrupt(BadBlock):
    """A checksum does not match, or the fields contradict each other."""

    code = "block_corrupt"


class BlockTooLarge(BadBlock):
    """A block asks for more memory, records or windows than the limits allow.

    Raised from the header alone, before anything is allocated or inflated.
    """

    code = "block_too_large"


class NotALog(LogError):
    """The path holds nothing that Tidelog wrote or can read."""

    code = "not_a_log"

    def __init__(self, *, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class BadJournalFile(LogError):
    """A foreign journal or capture file cannot be read further."""

    code = "bad_journal_file"

    def __init__(self, *, path: str, position: int, problem: str) -> None:
        super().__init__(f"{path} at byte {position}: {problem}")
        self.path = path
        self.position = position
        self.problem = problem


# --- the disk --------------------------------------------------------------------------------------


class DiskError(LogError):
    """A file operation failed. Base of the disk errors below; `definite` is False because part of
    a write may have reached the disk."""

    code = "disk_error"
    definite = False

    def __init__(self, *, operation: str, path: str, reason: str) -> None:
        super().__init__(f"{operation} {path}: {reason}")
        self.operation = operation
        self.path = path
        self.reason = reason


class DiskFull(DiskError):
    """No space is left, or the reserve kept for truncation and metadata would be touched.

    Nothing of the refused append is visible. Free space or shorten retention, then retry.
    """

    code = "disk_full"
    retriable = True
    definite = True


class SyncFailed(DiskError):
    """fsync or fdatasync reported an error: the kernel may have dropped what was written.

    The log never acks again until it has been opened anew and verified.
    """

    code = "sync_failed"


class DiskFailed(LogError):
    """A process stops because of its disk: the kernel reported an I/O error, or the file system can only be read.

    Restart the process, which then verifies what the disk holds (exit code 74 asks a supervisor to). Should it come
    again, the disk is to be replaced: a node with an empty one fetches everything from its peers.
    """

    code = "disk_failed"
    definite = False

    def __init__(self, *, cause: str) -> None:
        super().__init__(
            f"the disk failed: {cause}. Nothing more is written until a restart has verified what it holds; restart "
            "the process, and if this comes again look at the kernel's log and replace the disk"
        )
        self.cause = cause


class FileMissing(DiskError):
    """The file or folder does not exist."""

    code = "file_missing"
    definite = True


class FolderLocked(DiskError):
    """Another process has this folder open."""

    code = "folder_locked"
    definite = True


# --- the log ---------------------------------------------------------------------------------------


class LogClosed(LogError):
    """The log was closed; open it again to use it."""

    code = "log_closed"

    def __init__(self, *, log: str) -> None:
        super().__init__(f"{log} is closed; open it again")
        self.log = log


class LogPoisoned(LogError):
    """A sync failed earlier, so what this log holds in memory may not be on disk.

    Definite: the refused operation had no effect. Close the log and open it again; recovery then
    keeps what verifies.
    """

    code = "log_poisoned"

    def __init__(self, *, log: str, cause: str) -> None:
        super().__init__(f"{log} stopped after {cause}; close it and open it again to verify it")
        self.log = log
        self.cause = cause


class OffsetOutOfRange(LogError):
    """The log does not hold this offset: it was trimmed away, or is not written yet."""

    code = "offset_out_of_range"

    def __init__(self, *, offset: int, log_start: int, log_end: int) -> None:
        super().__init__(
            f"offset {offset} is outside [{log_start}, {log_end}); read from {log_start} for the oldest record"
        )
        self.offset = offset
        self.log_start = log_start
        self.log_end = log_end


class OffsetMismatch(LogError):
    """A replicated block does not continue the log at its end."""

    code = "offset_mismatch"

    def __init__(self, *, expected: int, got: int) -> None:
        super().__init__(f"the log ends at {expected} but the block starts at {got}; fetch from {expected}")
        self.expected = expected
        self.got = got


class StaleEpoch(LogError):
    """A block carries a leader epoch below the newest one in the log."""

    code = "stale_epoch"

    def __init__(self, *, epoch: int, newest: int) -> None:
        super().__init__(f"epoch {epoch} is older than {newest}, the newest in this log; ask for the leader again")
        self.epoch = epoch
        self.newest = newest


class NotABlockBoundary(LogError):
    """A log can be truncated only between two blocks."""

    code = "not_a_block_boundary"

    def __init__(self, *, offset: int, block: range) -> None:
        super().__init__(
            f"offset {offset} lies inside the block [{block.start}, {block.stop}); "
            f"truncate to {block.start} or {block.stop}"
        )
        self.offset = offset
        self.block = block


class DamagedRange(LogError):
    """These offsets are held but cannot be read: their bytes failed their checksum.

    Read on at `end`, or replace the range from a peer.
    """

    code = "damaged_range"
    retriable = True

    def __init__(self, *, start: int, end: int, problem: str) -> None:
        super().__init__(f"offsets [{start}, {end}) are damaged ({problem}); fetch them from a peer or read from {end}")
        self.start = start
        self.end = end
        self.problem = problem


class ReplacementRefused(LogError):
    """The blocks offered for a damaged range do not cover exactly that range."""

    code = "replacement_refused"

    def __init__(self, *, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class MemoryLogFull(LogError):
    """A memory log reached its hard cap. Trim it (retention) or make the channel persistent."""

    code = "memory_log_full"
    retriable = True

    def __init__(self, *, log: str, held_bytes: int, bytes_max: int) -> None:
        super().__init__(
            f"{log} holds {held_bytes} of at most {bytes_max} bytes; sweep retention or make the channel persistent"
        )
        self.log = log
        self.held_bytes = held_bytes
        self.bytes_max = bytes_max


class QueueFull(LogError):
    """More appends are waiting than the writer may hold. Wait for acks, then retry."""

    code = "queue_full"
    retriable = True

    def __init__(self, *, waiting_bytes: int, bytes_max: int) -> None:
        super().__init__(f"{waiting_bytes} bytes are waiting to be written, the limit is {bytes_max}; wait for acks")
        self.waiting_bytes = waiting_bytes
        self.bytes_max = bytes_max


class WaitTimedOut(LogError):
    """The deadline passed before the condition held. What was waited for may still happen.

    Not definite: an append that was queued is not taken back.
    """

    code = "wait_timed_out"
    retriable = True
    definite = False

    def __init__(self, *, waiting_for: str, deadline_s: float) -> None:
        super().__init__(f"{waiting_for} did not happen within {deadline_s:g} s")
        self.waiting_for = waiting_for
        self.deadline_s = deadline_s


# --- the store and the journal ---------------------------------------------------------------------


class UnknownChannel(LogError):
    """The store has no channel of this name."""

    code = "unknown_channel"

    def __init__(self, *, channel: str) -> None:
        super().__init__(f"there is no channel {channel!r}; create it first")
        self.channel = channel


class ChannelExists(LogError):
    """A channel of this name exists already."""

    code = "channel_exists"

    def __init__(self, *, channel: str) -> None:
        super().__init__(f"channel {channel!r} exists; open it, or delete it first")
        self.channel = channel


class SeqExhausted(LogError):
    """A lineage has used every sequence number it may."""

    code = "seq_exhausted"

    def __init__(self, *, head: int) -> None:
        super().__init__(f"seq {head} is the last one a lineage can use; fork a new lineage")
        self.head = head
