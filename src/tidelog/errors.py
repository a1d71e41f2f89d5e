"""Every error that Tidelog raises on purpose.

An `AssertionError` means a bug in Tidelog; a `LogError` means the world did something, and its
message tells the reader what to do next. Callers decide by the class attributes, never by text:
`retriable` (the same request may succeed later) and `definite` (the operation certainly had no
effect; when unsure, False).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar


class LogError(Exception):
    """Base of everything Tidelog raises on purpose."""

    code: ClassVar[str] = "log_error"
    """Stable; travels on the wire and names the row in docs/errors.md."""
    retriable: ClassVar[bool] = False
    definite: ClassVar[bool] = True

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors are built by keyword, so the default (class, args) recipe would not rebuild them
        # on the far side of a pickle (Spark workers, process pools).
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(cls: type[LogError], args: tuple[Any, ...], state: dict[str, Any]) -> LogError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


# --- what a caller passed in -------------------------------------------------------------------


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


# --- bytes that are not what they claim to be ---------------------------------------------------


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


# --- the disk ------------------------------------------------------------------------------------


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


class FileMissing(DiskError):
    """The file or folder does not exist."""

    code = "file_missing"
    definite = True


class FolderLocked(DiskError):
    """Another process has this folder open."""

    code = "folder_locked"
    definite = True


# --- the log -------------------------------------------------------------------------------------


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


class SkipNotSupported(LogError):
    """A persistent log never skips records; rebuild it from a peer instead."""

    code = "skip_not_supported"

    def __init__(self, *, log: str) -> None:
        super().__init__(f"{log} is persistent and cannot skip ahead; use rebuild_from")
        self.log = log


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


# --- the store and the journal -------------------------------------------------------------------


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


# --- the uplink ----------------------------------------------------------------------------------


class SessionFenced(LogError):
    """A newer session of this boat is open; this one is over. Shake hands again."""

    code = "session_fenced"
    retriable = True

    def __init__(self, *, session: int, newest: int) -> None:
        super().__init__(f"session {session} ended when session {newest} began; shake hands again")
        self.session = session
        self.newest = newest


class RateExceeded(LogError):
    """A live stream sent faster than a bus can talk. Pace the stream; history goes by Backfill."""

    code = "rate_exceeded"
    retriable = True

    def __init__(self, *, frames_per_s: float, burst: int) -> None:
        super().__init__(
            f"more than {frames_per_s:g} frames/s (burst {burst}) on Live; send history by Backfill instead"
        )
        self.frames_per_s = frames_per_s
        self.burst = burst


class LagExceeded(LogError):
    """A live stream is too far behind its boat's head. Shake hands again; Backfill brings the gap."""

    code = "lag_exceeded"
    retriable = True

    def __init__(self, *, lag: int, lag_max: int) -> None:
        super().__init__(f"Live is {lag} frames behind, at most {lag_max} are allowed; shake hands again")
        self.lag = lag
        self.lag_max = lag_max


class TooManyHoles(LogError):
    """As many gaps are open as the cloud may remember for one boat, and this block would add one."""

    code = "too_many_holes"
    retriable = True

    def __init__(self, *, holes_max: int) -> None:
        super().__init__(f"{holes_max} holes are open; send the oldest missing seqs first")
        self.holes_max = holes_max


class BadMessage(LogError):
    """A message from the other side cannot be read or asks for what cannot be. Nothing of it was taken."""

    code = "bad_message"

    def __init__(self, *, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class ForeignLineage(LogError):
    """A block belongs to another lineage than the one this session was opened for."""

    code = "foreign_lineage"

    def __init__(self, *, expected: str, got: str) -> None:
        super().__init__(f"the session is for lineage {expected}, the block is of {got}; shake hands again")
        self.expected = expected
        self.got = got


# --- identity ------------------------------------------------------------------------------------


class BadIdentity(LogError):
    """A certificate does not say, without doubt, who its holder is. Issue a proper one."""

    code = "bad_identity"

    def __init__(self, *, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class WeakCertificate(BadIdentity):
    """A certificate is signed or keyed with something that can be forged: SHA-1, a short RSA key."""

    code = "weak_certificate"


class WrongKind(LogError):
    """A boat came to the door of the nodes, or a node to the door of the boats."""

    code = "wrong_kind"

    def __init__(self, *, name: str, kind: str, needed: str) -> None:
        super().__init__(f"the certificate of {name} is a {kind}'s; a {needed}'s is needed here")
        self.name = name
        self.kind = kind
        self.needed = needed


class CertificateExpired(LogError):
    """The certificate's time is over. Renew it with `tidelog ca renew`."""

    code = "certificate_expired"

    def __init__(self, *, subject: str, expired: str, now: str) -> None:
        super().__init__(
            f"the certificate of {subject} expired at {expired} and the clock says {now}; "
            "renew it with `tidelog ca renew`, or set the clock"
        )
        self.subject = subject
        self.expired = expired
        self.now = now


class CertificateNotYetValid(LogError):
    """The certificate's time has not come, which nearly always means that a clock is wrong."""

    code = "certificate_not_yet_valid"
    retriable = True

    def __init__(self, *, subject: str, begins: str, now: str) -> None:
        super().__init__(
            f"the certificate of {subject} is valid from {begins} but the clock says {now}; set the clock first"
        )
        self.subject = subject
        self.begins = begins
        self.now = now


class CertificateRevoked(LogError):
    """The certificate is on the revocation list. Issue a new one if its holder should come back."""

    code = "certificate_revoked"

    def __init__(self, *, serial: str, reason: str) -> None:
        super().__init__(f"certificate {serial} is revoked ({reason or 'no reason given'}); issue a new one")
        self.serial = serial
        self.reason = reason


class BadRevocationList(LogError):
    """A revocation list cannot be read and there is no earlier one to keep to, so nobody is let in."""

    code = "bad_revocation_list"

    def __init__(self, *, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class NameTaken(LogError):
    """Somebody else has this name, or one that differs from it only in case."""

    code = "name_taken"

    def __init__(self, *, name: str, held: str, remedy: str) -> None:
        super().__init__(f"{name} is taken by {held}; {remedy}")
        self.name = name
        self.held = held
        self.remedy = remedy


class TooManyNames(LogError):
    """As many different names are known as the limit allows, and this would be one more."""

    code = "too_many_names"
    retriable = True

    def __init__(self, *, names_max: int) -> None:
        super().__init__(f"{names_max} names are known and no more are allowed; raise the limit or remove some")
        self.names_max = names_max


class AuthorityError(LogError):
    """A certificate authority's folder cannot do what was asked of it."""

    code = "authority_error"

    def __init__(self, *, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


# --- sources -------------------------------------------------------------------------------------


class MissingExtra(LogError):
    """An optional part of Tidelog is not installed."""

    code = "missing_extra"

    def __init__(self, *, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs the extra {extra!r}; install it with: pip install 'tidelog[{extra}]'")
        self.extra = extra
        self.needed_for = needed_for


class SourceFailed(LogError):
    """Where frames come from broke or could not be opened. Close it and open it again after a pause.

    Not definite: frames that were on the bus meanwhile are gone.
    """

    code = "source_failed"
    retriable = True
    definite = False

    def __init__(self, *, source: str, reason: str) -> None:
        super().__init__(f"{source}: {reason}; check the interface and its cable, then open it again")
        self.source = source
        self.reason = reason
