"""Errors of what travels: the uplink, HTTP, and where frames come from."""

from __future__ import annotations

from tidelog.errors.base import LogError

# --- the uplink ------------------------------------------------------------------------------------


class SessionFenced(LogError):
    """A newer session of this boat is open; this one is over. Shake hands again."""

    code = "session_fenced"
    retriable = True

    def __init__(self, *, session: int, newest: int) -> None:
        super().__init__(f"session {session} ended when session {newest} began; shake hands again")
        self.session = session
        self.newest = newest


class NameInUse(LogError):
    """Another process delivers under this boat's name. Stop one of the two, or issue it a certificate of its own."""

    code = "name_in_use"
    retriable = True

    def __init__(self, *, name: str, since: str, silent_ms: int) -> None:
        super().__init__(
            f"another process uses the name {name} since {since} and was heard {silent_ms} ms ago; this one waits "
            "until it is gone: stop one of the two, or issue it a certificate of its own (`tidelog ca issue`)"
        )
        self.name = name
        self.since = since
        self.silent_ms = silent_ms


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


class HolesLeft(LogError):
    """An lplex boat hears of what is missing in a Handshake only, and something is: the session ends for that.

    Nothing is wrong. Shake hands again; Live goes on where it ended.
    """

    code = "holes_left"
    retriable = True

    def __init__(self) -> None:
        super().__init__("frames are missing that only a Handshake can ask for; shake hands again")


class ConflictingFrames(LogError):
    """A frame came under a seq that is held with other content: two journals count in one lineage, or one restarted.

    Nothing of it was taken. Shake hands again: the cloud then says how to go on.
    """

    code = "conflicting_frames"
    retriable = True

    def __init__(self, *, lineage: str, seq: int) -> None:
        super().__init__(f"seq {seq} of lineage {lineage} is held with another frame; shake hands again")
        self.lineage = lineage
        self.seq = seq


# --- sources ---------------------------------------------------------------------------------------


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
