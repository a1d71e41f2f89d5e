"""Errors of configuration, records, stored bytes, the disk, logs, the store and the journal."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.errors.base import LogError

# --- what a caller passed in -----------------------------------------------------------------------


class InvalidConfig(LogError):
    """A configuration section has invalid values. All problems are listed at once."""

    section: str
    problems: Sequence[str]

    def _message(self) -> str:
        return f"{self.section}: " + "; ".join(self.problems)


class InvalidRecord(LogError):
    """A record cannot be written as given: too long, out of range, or the columns disagree."""

    template = "{problem}"
    problem: str


# --- bytes that are not what they claim to be ------------------------------------------------------


class BadBlock(LogError):
    """Bytes are not a valid block. Base of the three errors below."""

    template = "{problem}"
    problem: str


class BlockTruncated(BadBlock):
    """The bytes end before the block does."""


class BlockCorrupt(BadBlock):
    """A checksum does not match, or the fields contradict each other."""


class BlockTooLarge(BadBlock):
    """A block asks for more memory, records or windows than the limits allow.

    Raised from the header alone, before anything is allocated or inflated.
    """


class NotALog(LogError):
    """The path does not hold a log that Tidelog can read."""

    template = "{path}: {problem}"
    path: str
    problem: str


class BadJournalFile(LogError):
    """A foreign journal or capture file cannot be read further."""

    template = "{path} at byte {position}: {problem}"
    path: str
    position: int
    problem: str


# --- the disk --------------------------------------------------------------------------------------


class DiskError(LogError):
    """A file operation failed. Base of the disk errors below; `definite` is False because part of
    a write may have reached the disk."""

    definite = False
    template = "{operation} {path}: {reason}"
    operation: str
    path: str
    reason: str


class DiskFull(DiskError):
    """No space is left, or the reserve kept for truncation and metadata would be touched.

    Nothing of the refused append is visible. Free space or shorten retention, then retry.
    """

    retriable = True
    definite = True


class SyncFailed(DiskError):
    """fsync or fdatasync reported an error: the kernel may have dropped what was written.

    The log acknowledges nothing more until it has been opened again and verified.
    """


class DiskFailed(LogError):
    """A process stops because of its disk: the kernel reported an I/O error, or the file system is read-only.

    Restart the process, which then verifies what the disk holds (exit code 74 asks a supervisor to). If the
    error comes again, replace the disk: a node with an empty one fetches everything from its peers.
    """

    definite = False
    template = (
        "the disk failed: {cause}. Nothing more is written until a restart has verified what it holds; restart the "
        "process, and if this comes again look at the kernel's log and replace the disk"
    )
    cause: str


class FileMissing(DiskError):
    """The file or folder does not exist."""

    definite = True


class FolderLocked(DiskError):
    """Another process has this folder open."""

    definite = True


# --- the log ---------------------------------------------------------------------------------------


class LogClosed(LogError):
    """The log was closed; open it again to use it."""

    template = "{log} is closed; open it again"
    log: str


class LogPoisoned(LogError):
    """A sync failed earlier, so what this log holds in memory may not be on disk.

    Definite: the refused operation had no effect. Close the log and open it again; recovery then
    keeps what verifies.
    """

    template = "{log} stopped after {cause}; close it and open it again to verify it"
    log: str
    cause: str


class OffsetOutOfRange(LogError):
    """The log does not hold this offset: it was trimmed away, or is not written yet."""

    template = "offset {offset} is outside [{log_start}, {log_end}); read from {log_start} for the oldest record"
    offset: int
    log_start: int
    log_end: int


class OffsetMismatch(LogError):
    """A replicated block does not continue the log at its end."""

    template = "the log ends at {expected} but the block starts at {got}; fetch from {expected}"
    expected: int
    got: int


class StaleEpoch(LogError):
    """A block carries a leader epoch below the newest one in the log."""

    template = "epoch {epoch} is older than {newest}, the newest in this log; ask for the leader again"
    epoch: int
    newest: int


class NotABlockBoundary(LogError):
    """A log can be truncated only between two blocks."""

    template = (
        "offset {offset} lies inside the block [{block.start}, {block.stop}); truncate to {block.start} or {block.stop}"
    )
    offset: int
    block: range


class DamagedRange(LogError):
    """These offsets are held but cannot be read: their bytes failed their checksum.

    Read on at `end`, or replace the range from a peer.
    """

    retriable = True
    template = "offsets [{start}, {end}) are damaged ({problem}); fetch them from a peer or read from {end}"
    start: int
    end: int
    problem: str


class ReplacementRefused(LogError):
    """The blocks offered for a damaged range do not cover exactly that range."""

    template = "{problem}"
    problem: str


class MemoryLogFull(LogError):
    """A memory log reached its hard cap. Trim it (retention) or make the channel persistent."""

    retriable = True
    template = "{log} holds {held_bytes} of at most {bytes_max} bytes; sweep retention or make the channel persistent"
    log: str
    held_bytes: int
    bytes_max: int


class QueueFull(LogError):
    """More appends are waiting than the writer may hold. Wait for acks, then retry."""

    retriable = True
    template = "{waiting_bytes} bytes are waiting to be written, the limit is {bytes_max}; wait for acks"
    waiting_bytes: int
    bytes_max: int


class WaitTimedOut(LogError):
    """The deadline passed before the condition held. What was waited for may still happen.

    Not definite: an append that was queued is not taken back.
    """

    retriable = True
    definite = False
    template = "{waiting_for} did not happen within {deadline_s:g} s"
    waiting_for: str
    deadline_s: float


# --- the store and the journal ---------------------------------------------------------------------


class UnknownChannel(LogError):
    """The store has no channel of this name."""

    template = "there is no channel {channel!r}; create it first"
    channel: str


class ChannelExists(LogError):
    """A channel of this name exists already."""

    template = "channel {channel!r} exists; open it, or delete it first"
    channel: str


class SeqExhausted(LogError):
    """A lineage has used every sequence number it may."""

    template = "seq {head} is the last one a lineage can use; fork a new lineage"
    head: int
