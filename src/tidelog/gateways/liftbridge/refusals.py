"""Maps errors to the gRPC statuses that Liftbridge would give, with our own message.

One table is for calls, one for messages of PublishAsync, both by error code. Errors in neither are UNAVAILABLE if the
same request may succeed later, else INTERNAL.
"""

from __future__ import annotations

from typing import Any, Final

import grpc

from tidelog.cluster.uplink.refusals import DETAIL_CHARACTERS_MAX, abort_with
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.errors import LogError, OffsetConflict

Status = grpc.StatusCode

_STATUS: Final = {
    "unknown_channel": Status.NOT_FOUND,
    "channel_deleted": Status.NOT_FOUND,
    "channel_recreated": Status.NOT_FOUND,
    "channel_readonly": Status.FAILED_PRECONDITION,
    "channel_paused": Status.FAILED_PRECONDITION,
    "offset_conflict": Status.UNKNOWN,
    "invalid_config": Status.INVALID_ARGUMENT,
    "invalid_record": Status.INVALID_ARGUMENT,
    "bad_message": Status.INVALID_ARGUMENT,
    "block_too_large": Status.INVALID_ARGUMENT,
    "body_too_large": Status.INVALID_ARGUMENT,
    "config_mismatch": Status.ALREADY_EXISTS,
    "channel_exists": Status.ALREADY_EXISTS,
    "name_taken": Status.ALREADY_EXISTS,
    "access_denied": Status.PERMISSION_DENIED,
    "bad_identity": Status.PERMISSION_DENIED,
    "certificate_revoked": Status.PERMISSION_DENIED,
    "weak_certificate": Status.PERMISSION_DENIED,
    "wrong_kind": Status.PERMISSION_DENIED,
    "wait_timed_out": Status.DEADLINE_EXCEEDED,
    "outcome_unknown": Status.DEADLINE_EXCEEDED,
    "not_leader": Status.INTERNAL,
    "invalid_change": Status.INVALID_ARGUMENT,
    "unknown_group": Status.NOT_FOUND,
    "unknown_member": Status.FAILED_PRECONDITION,
    "member_exists": Status.FAILED_PRECONDITION,
    "member_fenced": Status.FAILED_PRECONDITION,
    "not_assigned": Status.FAILED_PRECONDITION,
    "not_group_coordinator": Status.FAILED_PRECONDITION,
    "stale_group_epoch": Status.FAILED_PRECONDITION,
}
_ASYNC: Final = {
    Status.NOT_FOUND: pb.PublishAsyncError.NOT_FOUND,
    Status.INVALID_ARGUMENT: pb.PublishAsyncError.BAD_REQUEST,
    Status.PERMISSION_DENIED: pb.PublishAsyncError.PERMISSION_DENIED,
    Status.UNKNOWN: pb.PublishAsyncError.UNKNOWN,
}
_ASYNC_CODES: Final = {
    "channel_readonly": pb.PublishAsyncError.READONLY,
    "offset_conflict": pb.PublishAsyncError.INCORRECT_OFFSET,
}


class GatewayRefusedError(Exception):
    """A refusal by the gateway itself: a status and a message."""

    def __init__(self, status: grpc.StatusCode, words: str) -> None:
        super().__init__(words)
        self.status = status


def status_of(error: GatewayRefusedError | LogError) -> grpc.StatusCode:
    if isinstance(error, GatewayRefusedError):
        return error.status
    found = _STATUS.get(error.code)
    if found is not None:
        return found
    return Status.UNAVAILABLE if error.retriable else Status.INTERNAL


def words_of(error: GatewayRefusedError | LogError) -> str:
    """The text may quote what a client sent; it is sent as a header, so it is cut."""
    if isinstance(error, OffsetConflict):
        # Liftbridge's wording: Go clients recognise this error by nothing else.
        return f"incorrect expected offset: {error}"[:DETAIL_CHARACTERS_MAX]
    text = str(error) if isinstance(error, GatewayRefusedError) else f"{error.code}: {error}"
    return text[:DETAIL_CHARACTERS_MAX]


def async_error_of(error: GatewayRefusedError | LogError) -> pb.PublishAsyncError:
    code = None if isinstance(error, GatewayRefusedError) else _ASYNC_CODES.get(error.code)
    if code is None:
        code = _ASYNC.get(status_of(error), pb.PublishAsyncError.INTERNAL)
    return pb.PublishAsyncError(code=code, message=words_of(error))


async def abort(context: Any, error: GatewayRefusedError | LogError) -> None:
    """End the call. Does not return."""
    await abort_with(context, status_of(error), words_of(error))
