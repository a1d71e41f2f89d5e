"""Errors of the uplink, of messages, and of the sources of frames."""

from __future__ import annotations

from tidelog.errors.base import LogError

# --- the uplink ------------------------------------------------------------------------------------


class SessionFenced(LogError):
    """A newer session of this boat is open, so this one has ended. Do the Handshake again."""

    retriable = True
    template = "session {session} ended when session {newest} began; do the Handshake again"
    session: int
    newest: int


class NameInUse(LogError):
    """Another process is sending under this boat's name. Stop one of the two, or issue it a certificate of its own."""

    retriable = True
    template = (
        "another process has used the name {name} since {since} and sent something {silent_ms} ms ago; this one "
        "waits until it is gone: stop one of the two, or issue it a certificate of its own (`tidelog ca issue`)"
    )
    name: str
    since: str
    silent_ms: int


class RateExceeded(LogError):
    """A Live stream exceeds its rate limit, which is above what a bus can send. Pace the stream; send history by
    Backfill."""

    retriable = True
    template = "more than {frames_per_s:g} frames/s (burst {burst}) on Live; send history by Backfill instead"
    frames_per_s: float
    burst: int


class LagExceeded(LogError):
    """A Live stream is too far behind its boat's head. Do the Handshake again; Backfill sends what is missing."""

    retriable = True
    template = "Live is {lag} frames behind, at most {lag_max} are allowed; do the Handshake again"
    lag: int
    lag_max: int


class TooManyHoles(LogError):
    """The cloud's limit of open gaps for one boat is reached, and this block would add one."""

    retriable = True
    template = "{holes_max} holes are open; send the oldest missing seqs first"
    holes_max: int


class BadMessage(LogError):
    """A message from the other side cannot be parsed, or asks for something impossible. Nothing of it was accepted."""

    template = "{problem}"
    problem: str


class ForeignLineage(LogError):
    """A block belongs to another lineage than the one this session was opened for."""

    template = "the session is for lineage {expected}, the block is of {got}; do the Handshake again"
    expected: str
    got: str


class HolesLeft(LogError):
    """Frames are missing, and an lplex boat learns which only from a Handshake, so the session ends.

    Nothing is wrong. Do the Handshake again; Live goes on where it ended.
    """

    retriable = True
    template = "frames are missing that only a Handshake can ask for; do the Handshake again"


class ConflictingFrames(LogError):
    """A frame arrived with a seq that is already stored with other content: two journals use one lineage, or a journal
    was restored from an older copy.

    Nothing of it was accepted. Do the Handshake again; the cloud's answer says how to go on.
    """

    retriable = True
    template = "seq {seq} of lineage {lineage} is already stored with another frame; do the Handshake again"
    lineage: str
    seq: int


# --- sources ---------------------------------------------------------------------------------------


class MissingExtra(LogError):
    """An optional part of Tidelog is not installed."""

    template = "{needed_for} needs the extra {extra!r}; install it with: pip install 'tidelog[{extra}]'"
    extra: str
    needed_for: str


class SourceFailed(LogError):
    """A source of frames failed or could not be opened. Close it and open it again after a pause.

    Not definite: frames that were on the bus meanwhile are lost.
    """

    retriable = True
    definite = False
    template = "{source}: {reason}; check the interface and its cable, then open it again"
    source: str
    reason: str
