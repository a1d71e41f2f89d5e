"""Passing a boat's calls on to the node that leads its channel, message by message, bytes as they are.

What a caller must keep: `check` every moment; pass on only what came from a boat itself (UY3).

RL1  A relayed stream belongs to one leader in one epoch. When the catalog names another, or the leader ends it, it ends
     here too, with a status that tells the boat to come again (U2).
RL2  The boat's name is passed on as its certificate proved it here; the leader believes it of a node alone (UY2).
RL3  Nothing piles up: a message is read from the boat when the one before it has left for the leader.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc

from tidelog.cluster.uplink.boats import Boats
from tidelog.cluster.uplink.identity import Caller, metadata_of, passed_on
from tidelog.cluster.uplink.options import RelayOptions
from tidelog.cluster.uplink.refusals import abort, abort_with, refusal_of
from tidelog.core.catalog import ChannelRecord
from tidelog.errors import LeadershipLost, NotChannelLeader
from tidelog.pki.tls_files import Stamp, read_pem, stamp_of
from tidelog.units import MIB

SERVICE: Final = "lplex.replication.v1.Replication"
MESSAGE_BYTES_MAX: Final = 20 * MIB
_HANDSHAKE_S: Final = 30.0
_HALF_CLOSE_S: Final = 0.25
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_retries", 0),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 * MIB),
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
_PASSED: Final = ("x-session", "x-instance-id")


@dataclass(eq=False, slots=True)
class _Relayed:
    """A call that runs."""

    boat: str
    leader: str
    epoch: int
    end: Callable[[], None]
    is_over: bool = False


class UplinkRelay:
    def __init__(self, boats: Boats, options: RelayOptions) -> None:
        self._options = options
        self._boats = boats
        self._channels: dict[tuple[str, Stamp], Any] = {}
        """By address, and by the state of this node's certificate: a renewed one is shown from the next call on."""
        self._running: set[_Relayed] = set()

    async def close(self) -> None:
        for relayed in list(self._running):
            relayed.end()
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    def check(self) -> None:
        """End what belongs to a leader of the past (RL1)."""
        for relayed in list(self._running):
            record = self._boats.record(relayed.boat)
            if record is None or (record.leader, record.leader_epoch) != (relayed.leader, relayed.epoch):
                relayed.is_over = True
                relayed.end()

    # --- the calls ---------------------------------------------------------------------------------

    async def handshake(self, request: bytes, context: Any, caller: Caller, led: NotChannelLeader) -> bytes:
        """The leader's answer, or its refusal. `led` says who leads."""
        assert led.leader is not None
        channel = await self._channel(context, caller, led.leader)
        call = channel.unary_unary(f"/{SERVICE}/Handshake")(
            request, timeout=_HANDSHAKE_S, metadata=self._metadata(context, caller)
        )
        relayed = _Relayed(caller.boat, led.leader, led.leader_epoch, call.cancel)
        self._running.add(relayed)
        try:
            answer: bytes = await call
            return answer
        except grpc.aio.AioRpcError as error:
            await abort_with(context, _status(error), error.details() or "the leader refused")
        except asyncio.CancelledError:
            if not relayed.is_over:
                raise  # the boat hung up
            await _abort_lost(context, relayed)
        finally:
            self._running.discard(relayed)
            call.cancel()
        raise AssertionError("abort returned")

    async def stream(
        self, method: str, requests: AsyncIterator[bytes], context: Any, caller: Caller, record: ChannelRecord
    ) -> None:
        """Live or Backfill, until one side ends it."""
        assert record.leader is not None
        channel = await self._channel(context, caller, record.leader)
        call = channel.stream_stream(f"/{SERVICE}/{method}")(metadata=self._metadata(context, caller))
        relayed = _Relayed(caller.boat, record.leader, record.leader_epoch, call.cancel)
        self._running.add(relayed)
        sending = asyncio.ensure_future(_send(requests, call))
        code, details = grpc.StatusCode.OK, ""
        try:
            async for answer in call:
                await context.write(answer)
            code, details = await call.code(), await call.details()
        except grpc.aio.AioRpcError as error:
            code, details = _status(error), error.details() or ""
        except asyncio.CancelledError:
            if not relayed.is_over:
                raise  # the boat hung up
        finally:
            self._running.discard(relayed)
            sending.cancel()
            call.cancel()
            await asyncio.wait({sending})
        if relayed.is_over:
            await _abort_lost(context, relayed)
        if code is not grpc.StatusCode.OK:
            await abort_with(context, code, details)

    def _metadata(self, context: Any, caller: Caller) -> list[tuple[str, str]]:
        own = [(key, value) for key in _PASSED if (value := metadata_of(context, key))]
        return [*own, *passed_on(caller)]  # RL2

    async def _channel(self, context: Any, caller: Caller, leader: str) -> Any:
        """The connection to a leader; refuses where none can be."""
        catalog = self._boats.catalog
        node = None if catalog is None else catalog.node(leader)
        address = "" if node is None else dict(node.addresses).get("uplink", "")
        if not address:
            await abort(context, refusal_of(NotChannelLeader(channel=caller.boat, leader=leader)))
        options = self._options
        files = [path for path in (options.authority, options.key, options.certificate) if path is not None]
        key = (address, stamp_of(*files))
        if key not in self._channels:
            self._channels[key] = self._dial(address)
        return self._channels[key]

    def _dial(self, address: str) -> Any:
        options = self._options
        if options.insecure_dev:
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        assert options.authority is not None
        assert options.certificate is not None
        assert options.key is not None
        credentials = grpc.ssl_channel_credentials(
            read_pem(options.authority), read_pem(options.key), read_pem(options.certificate)
        )
        return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)


async def _abort_lost(context: Any, relayed: _Relayed) -> None:
    await abort(context, refusal_of(LeadershipLost(channel=relayed.boat, leader_epoch=relayed.epoch)))


async def _send(requests: AsyncIterator[bytes], call: Any) -> None:
    """Pass the boat's messages on (RL3). A call that cannot be written to is over; its reader gets the reason."""
    with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError, asyncio.CancelledError):
        async for data in requests:
            await call.write(data)
        # A broken call looks like a finished one at first, and is cancelled a moment later (F5).
        await asyncio.sleep(_HALF_CLOSE_S)
        await call.done_writing()


def _status(error: grpc.aio.AioRpcError) -> grpc.StatusCode:
    """A leader that cannot be reached is no fault of the boat's."""
    passing = (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNKNOWN)
    return grpc.StatusCode.UNAVAILABLE if error.code() in passing else error.code()
