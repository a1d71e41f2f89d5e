"""NATS subjects and queue groups that a channel may be fed from: one rule for all callers.

A subject here is literal: one channel listens to one subject. Wildcards are refused, because messages of many subjects
in one channel could not be told apart by a reader that takes it for a stream of its subject.

Only a node knows its own NATS namespace: pass it where it is known, and the subject is checked again there.
"""

from __future__ import annotations

import re
from typing import Final

SUBJECT_BYTES_MAX: Final = 255
"""The longest subject that a channel may be attached to; far below what NATS accepts in one line."""
QUEUE_GROUP_BYTES_MAX: Final = 128

_BLANK: Final = re.compile(r"[\s\x00-\x20\x7f]")


def subject_problem(subject: str, *, namespace: str | None = None) -> str | None:
    """Why no channel can be fed from it, to be read after the subject; None if one can."""
    if not subject:
        return "is empty; name the subject that the channel is fed from"
    if (problem := _text_problem(subject, SUBJECT_BYTES_MAX)) is not None:
        return problem
    if "*" in subject or ">" in subject:
        return "holds a wildcard; a channel is fed from one subject, so make one channel for each"
    parts = subject.split(".")
    if "" in parts:
        return "has an empty part: it begins or ends with a dot, or has two in a row"
    if parts[0].startswith("$") or parts[0] == "_INBOX":
        return "is NATS' own; choose one that does not begin with $ or _INBOX"
    if parts[0] == namespace:
        return f"lies in {namespace}, where this cluster's nodes talk to each other; choose another"
    return None


def queue_group_problem(group: str) -> str | None:
    """Why it is no name for a queue group, to be read after the name; None if it is one."""
    if not group:
        return "is empty; leave the queue group out, or name it"
    if (problem := _text_problem(group, QUEUE_GROUP_BYTES_MAX)) is not None:
        return problem
    return "has an empty part between dots" if "" in group.split(".") else None


def is_reply_subject(subject: str) -> bool:
    """Whether an answer can be sent there: any literal subject, an inbox too."""
    parts = subject.split(".")
    return bool(subject) and _text_problem(subject, SUBJECT_BYTES_MAX) is None and not {"", "*", ">"} & set(parts)


def attached_subject(subject: str, partition: int) -> str:
    """The subject that feeds one partition of a stream, as in Liftbridge: partition 0 uses the stream's subject
    itself."""
    return f"{subject}.{partition}" if partition else subject


def _text_problem(text: str, bytes_max: int) -> str | None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "is not text that can be written as UTF-8"
    if size > bytes_max:
        return f"is longer than {bytes_max} bytes"
    if _BLANK.search(text):
        return "holds white space or a control character, which NATS does not take"
    return None
