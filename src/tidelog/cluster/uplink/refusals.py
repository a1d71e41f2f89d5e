"""How a refusal reaches a boat: as a status of gRPC, with the code of the error and its words."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc

from tidelog.core.uplink.messages import Refused
from tidelog.errors import LogError

DETAIL_CHARACTERS_MAX: Final = 500
LAST_ANSWER_S: Final = 1.0
"""Who does not read is not waited for."""

ROUTINE: Final = frozenset({"session_fenced", "log_closed", "holes_left"})
"""Ends of a session at which nothing is wrong: it was fenced by the boat's newer one, the node stops, or an lplex boat
is to hear in a Handshake what is missing. No refusals of the boat."""

_STATUS: Final = {
    "rate_exceeded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "lag_exceeded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "too_many_holes": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "disk_full": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "too_many_names": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "queue_full": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "holes_left": grpc.StatusCode.UNAVAILABLE,
    "session_fenced": grpc.StatusCode.FAILED_PRECONDITION,
    "name_in_use": grpc.StatusCode.FAILED_PRECONDITION,
    "foreign_lineage": grpc.StatusCode.FAILED_PRECONDITION,
    "conflicting_frames": grpc.StatusCode.FAILED_PRECONDITION,
    "no_certificate": grpc.StatusCode.UNAUTHENTICATED,
    "bad_identity": grpc.StatusCode.PERMISSION_DENIED,
    "certificate_revoked": grpc.StatusCode.PERMISSION_DENIED,
    "weak_certificate": grpc.StatusCode.PERMISSION_DENIED,
    "wrong_kind": grpc.StatusCode.PERMISSION_DENIED,
    "name_taken": grpc.StatusCode.PERMISSION_DENIED,
    "bad_message": grpc.StatusCode.INVALID_ARGUMENT,
    "invalid_record": grpc.StatusCode.INVALID_ARGUMENT,
    "bad_block": grpc.StatusCode.INVALID_ARGUMENT,
    "block_corrupt": grpc.StatusCode.INVALID_ARGUMENT,
    "block_truncated": grpc.StatusCode.INVALID_ARGUMENT,
    "block_too_large": grpc.StatusCode.INVALID_ARGUMENT,
    "wait_timed_out": grpc.StatusCode.UNAVAILABLE,
    "log_closed": grpc.StatusCode.UNAVAILABLE,
    # The channel behind the uplink: most of it passes, and the boat comes again.
    "not_channel_leader": grpc.StatusCode.UNAVAILABLE,
    "leadership_lost": grpc.StatusCode.UNAVAILABLE,
    "not_enough_replicas": grpc.StatusCode.UNAVAILABLE,
    "no_replica_here": grpc.StatusCode.UNAVAILABLE,
    "placement_refused": grpc.StatusCode.UNAVAILABLE,
    "not_leader": grpc.StatusCode.UNAVAILABLE,
    "leadership_moving": grpc.StatusCode.UNAVAILABLE,
    "peer_unreachable": grpc.StatusCode.UNAVAILABLE,
    "unknown_channel": grpc.StatusCode.UNAVAILABLE,
    "too_many_in_flight": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "catalog_full": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "channel_readonly": grpc.StatusCode.FAILED_PRECONDITION,
    "channel_paused": grpc.StatusCode.FAILED_PRECONDITION,
}


class UplinkRefusedError(Exception):
    """A refusal on its way to the boat."""

    def __init__(self, refusal: Refused) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal


def refusal_of(error: UplinkRefusedError | LogError) -> Refused:
    if isinstance(error, UplinkRefusedError):
        return error.refusal
    return Refused(session=0, code=error.code, detail=str(error))


async def abort(context: Any, refusal: Refused) -> None:
    """End the call with the refusal's status. Does not return."""
    code = _STATUS.get(refusal.code, grpc.StatusCode.INTERNAL)
    # The words may quote what a boat sent; as a header they must stay short.
    await abort_with(context, code, f"{refusal.code}: {refusal.detail}"[:DETAIL_CHARACTERS_MAX])


async def abort_with(context: Any, code: grpc.StatusCode, details: str) -> None:
    try:
        async with asyncio.timeout(LAST_ANSWER_S):
            await context.abort(code, details)
    except TimeoutError:
        raise grpc.aio.AbortError from None
