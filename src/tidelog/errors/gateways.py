"""Errors of NATS and the Liftbridge gateway: bytes and subjects that cannot be used."""

from __future__ import annotations

from tidelog.errors.base import LogError


class BadEnvelope(LogError):
    """A NATS payload has no Liftbridge envelope, a damaged one, or one of a type that does not belong on this subject.

    On a stream's subject this is not an error: such a payload is a plain NATS message, and is stored as it is.
    """

    template = "{problem}; find out who else publishes to this subject, and with which client"
    problem: str


class BadSubject(LogError):
    """A NATS subject, or a part of one, cannot be used here: it has a wildcard or an empty part, or is reserved."""

    template = "the subject {subject!r} {problem}"
    subject: str
    problem: str


class PayloadTooSmall(LogError):
    """The NATS server accepts smaller payloads than replication needs. Raise `max_payload` in its configuration."""

    template = "the NATS server takes {bytes_max} bytes in a payload and {needed} are needed; raise its max_payload"
    bytes_max: int
    needed: int
