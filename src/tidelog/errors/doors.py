"""Errors of the doors to NATS and Liftbridge: bytes, records and subjects of theirs that cannot be taken."""

from __future__ import annotations

from tidelog.errors.base import LogError


class BadEnvelope(LogError):
    """A NATS payload has no Liftbridge envelope, a damaged one, or one of another type than this subject takes.

    On a stream's subject this is no error: such a payload is a plain NATS message, and is stored as it came.
    """

    code = "bad_envelope"

    def __init__(self, *, problem: str) -> None:
        super().__init__(f"{problem}; look who else publishes to this subject, and with which client")
        self.problem = problem


class BadLiftbridgeRecord(LogError):
    """Bytes that should be a Liftbridge record are not one: cut off, contradicting themselves, or a wrong checksum."""

    code = "bad_liftbridge_record"

    def __init__(self, *, position: int, problem: str) -> None:
        super().__init__(f"the record at byte {position} {problem}; fetch it again from a server that holds it whole")
        self.position = position
        self.problem = problem


class BadSubject(LogError):
    """A NATS subject, or a part of one, cannot be used for this: a wildcard, an empty part, a reserved place."""

    code = "bad_subject"

    def __init__(self, *, subject: str, problem: str) -> None:
        super().__init__(f"the subject {subject!r} {problem}")
        self.subject = subject
        self.problem = problem


class PayloadTooSmall(LogError):
    """The NATS server takes smaller payloads than replication needs. Raise `max_payload` in its configuration."""

    code = "payload_too_small"

    def __init__(self, *, bytes_max: int, needed: int) -> None:
        super().__init__(
            f"the NATS server takes {bytes_max} bytes in a payload and {needed} are needed; raise its max_payload"
        )
        self.bytes_max = bytes_max
        self.needed = needed
