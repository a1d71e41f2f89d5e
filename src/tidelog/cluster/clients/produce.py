"""Producing over the link: blocks that clients send, and the answers they get.

One-way messages in both directions. Every block is checked before the leader's replica gets it: the sender, whether the
channel takes it, whether the bytes are whole and may come from a client at all. Answers of one turn of the loop leave
in one message per link.

What a caller must keep: `LocalChannels.produce` calls `answer` exactly once, then or later, or raises a `LogError` and
never calls it. Call from the event loop only.

PR1  Every block is answered once (CM1), as long as its link is open.
PR2  At most `produce_bytes_max` of a link and `produce_bytes_total_max` of all wait for an answer; more is refused.
PR3  No client writes control records or placeholders, and none under a producer that is not its own in this epoch.
PR4  A client that does not read its answers loses its link: it would no longer know what was written.
PR5  A refusal by an old catalog is checked again by a newer one before it is sent (`clients.rechecks`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Final

from tidelog.blocks.block import MadeBlock
from tidelog.blocks.header import NO_PRODUCER, BlockKind, Maker
from tidelog.cluster.clients.access import WRITE, ClientAccess
from tidelog.cluster.clients.chains import FetchChains
from tidelog.cluster.clients.rechecks import MAY_BE_STALE, Rechecks
from tidelog.cluster.local_channels import LocalChannels
from tidelog.codecs.client_codec import PRODUCED, decode_produce, encode_produced
from tidelog.core.catalog import Catalog, ChannelRecord
from tidelog.core.client_messages import Produce, Produced
from tidelog.errors import (
    BadMessage,
    ChannelDeleted,
    ChannelPaused,
    ChannelReadonly,
    InvalidConfig,
    InvalidRecord,
    LinkBusy,
    LinkClosed,
    LogError,
    NotChannelLeader,
    NotEnoughReplicas,
    ProducerFenced,
    ProducerNotYetKnown,
    ProducerOwned,
    TooManyInFlight,
    UnknownChannel,
    UnknownProducer,
)
from tidelog.transports.link.frames import SMALL_BYTES_MAX
from tidelog.transports.link.link import Link
from tidelog.units import MIB

_PRODUCER_ID_BYTES: Final = 8
_DATA_KINDS: Final = frozenset({BlockKind.FRAMES, BlockKind.MESSAGES, BlockKind.FOREIGN})

AnswerProduced = Callable[[Produced], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """The limits of one client, and of all of them together. Per node."""

    produce_bytes_max: int = 32 * MIB
    """Bytes of one link's blocks that wait for their answer."""
    produce_bytes_total_max: int = 512 * MIB
    """The same for all links together."""
    fetch_waits_max: int = 128
    """Fetches of one link that wait for records."""
    fetch_bytes_max: int = 8 * MIB
    """The largest answer; a fetch that wants more gets this much."""

    def __post_init__(self) -> None:
        problems = [f"{one.name} must be positive" for one in fields(self) if getattr(self, one.name) <= 0]
        if self.produce_bytes_total_max < self.produce_bytes_max:
            problems.append("produce_bytes_total_max must be at least produce_bytes_max")
        if problems:
            raise InvalidConfig(section="client", problems=problems)


class ClientLink:
    """The state of one link."""

    __slots__ = ("answers", "chains", "checked", "checked_index", "in_flight_bytes", "link", "principal", "waits")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.principal = f"{link.peer_kind}:{link.peer}"
        self.answers: list[Produced] = []
        self.in_flight_bytes = 0
        self.waits = 0
        self.chains = FetchChains()
        self.checked: dict[int, ChannelRecord] = {}
        """Channels that take its blocks here, by the catalog at `checked_index`; checked again when the catalog
        changes."""
        self.checked_index = -1


class Producing:
    def __init__(self, channels: LocalChannels, *, access: ClientAccess, limits: ClientLimits) -> None:
        self._channels = channels
        self._access = access
        self._limits = limits
        self._answered: list[ClientLink] = []
        self._flush_is_due = False
        self.rechecks = Rechecks(channels.read_barrier)
        self.in_flight_bytes = 0
        self.blocks_taken = 0
        self.blocks_refused = 0

    def receive(self, client: ClientLink, body: memoryview) -> None:
        """One PRODUCE. An unreadable body ends the link, since its blocks cannot be answered (PR1)."""
        try:
            requests = decode_produce(body)
        except BadMessage as error:
            client.link.abort(f"a client sent what cannot be read: {error}")
            raise
        for request in requests:
            if not self.rechecks.holds((client, request.channel_id)):
                try:
                    self._take(client, request)
                    continue
                except MAY_BE_STALE:
                    pass  # PR5
                except LogError as error:
                    self.answer(client, Produced(token=request.token, error=error))
                    continue
            self._judge_later(
                client,
                request.channel_id,
                sum(map(len, request.block)),
                partial(self._take, client, request),
                partial(self._refuse, client, request.token),
            )

    def _refuse(self, client: ClientLink, token: int, error: LogError) -> None:
        self.answer(client, Produced(token=token, error=error))

    def _judge_later(
        self,
        client: ClientLink,
        channel_id: int,
        size: int,
        take: Callable[[], None],
        refuse: Callable[[LogError], None],
    ) -> None:
        """Take it or refuse it by a newer catalog (PR5). Waiting blocks count for the limits (PR2)."""
        try:
            self._require_room(client, size)
        except LogError as error:
            refuse(error)
            return

        def attempt(is_final: bool) -> bool:
            self.release(client, size)
            try:
                take()
            except MAY_BE_STALE as error:
                if not is_final:
                    self.release(client, -size)
                    return False
                refuse(error)
            except LogError as error:
                refuse(error)
            return True

        self.release(client, -size)
        self.rechecks.wait((client, channel_id), attempt)

    def _take(self, client: ClientLink, request: Produce) -> None:
        data = request.block[0]
        size = len(data)
        self._require_room(client, size)
        channel = self._channel(client, request)
        made = MadeBlock.parse(data)
        self._require_own(client, channel, made.maker)
        receipt = _Receipt(self, client, request.token, size)
        client.in_flight_bytes += size
        self.in_flight_bytes += size
        try:
            self._channels.produce(request, made, receipt)
        except LogError as error:
            receipt(Produced(token=request.token, error=error))

    def take_records(
        self, client: ClientLink, request: Produce, made: MadeBlock, size: int, receipt: AnswerProduced
    ) -> None:
        """A block that this node made of a client's records; `receipt` is called once, also with a refusal."""
        take = partial(self._take_records, client, request, made, size, receipt)
        if not self.rechecks.holds((client, request.channel_id)):
            try:
                take()
                return
            except MAY_BE_STALE:
                pass  # PR5
            except LogError as error:
                receipt(Produced(token=request.token, error=error))
                return
        self._judge_later(
            client,
            request.channel_id,
            size,
            take,
            lambda error: receipt(Produced(token=request.token, error=error)),
        )

    def _take_records(
        self, client: ClientLink, request: Produce, made: MadeBlock, size: int, receipt: AnswerProduced
    ) -> None:
        self._require_room(client, size)
        channel = self._channel(client, request)
        self._require_own(client, channel, made.maker)
        client.in_flight_bytes += size
        self.in_flight_bytes += size

        def answered(produced: Produced) -> None:
            self.release(client, size)
            receipt(produced)

        try:
            self._channels.produce(request, made, answered)
        except LogError as error:
            answered(Produced(token=request.token, error=error))

    def _require_room(self, client: ClientLink, size: int) -> None:
        limits = self._limits
        for waiting, bytes_max in (
            (client.in_flight_bytes, limits.produce_bytes_max),
            (self.in_flight_bytes, limits.produce_bytes_total_max),
        ):
            # One block always has room, or a large one would never be taken.
            if waiting and waiting + size > bytes_max:
                raise TooManyInFlight(waiting_bytes=waiting, bytes_max=bytes_max)

    def _channel(self, client: ClientLink, request: Produce) -> ChannelRecord:
        """The channel, if it takes blocks of this client, here and now."""
        catalog = self._channels.catalog
        if client.checked_index != catalog.applied_index:
            client.checked.clear()
            client.checked_index = catalog.applied_index
        channel = client.checked.get(request.channel_id)
        if channel is None:
            channel = client.checked[request.channel_id] = self._checked(client, catalog, request.channel_id)
        if request.leader_epoch not in (0, channel.leader_epoch):
            raise NotChannelLeader(channel=channel.name, leader=channel.leader, leader_epoch=channel.leader_epoch)
        return channel

    def _checked(self, client: ClientLink, catalog: Catalog, channel_id: int) -> ChannelRecord:
        channel = known_channel(catalog, channel_id)
        self._access.require(client.principal, channel.name, WRITE)
        if channel.paused:
            raise ChannelPaused(channel=channel.name)
        if channel.leader != self._channels.node:
            raise NotChannelLeader(channel=channel.name, leader=channel.leader, leader_epoch=channel.leader_epoch)
        if channel.readonly:
            raise ChannelReadonly(channel=channel.name)
        min_isr = channel.config.effective_min_isr
        if len(channel.isr) < min_isr:
            raise NotEnoughReplicas(channel=channel.name, isr=len(channel.isr), min_isr=min_isr)
        return channel

    def _require_own(self, client: ClientLink, channel: ChannelRecord, maker: Maker) -> None:
        """PR3."""
        if maker.kind not in _DATA_KINDS or not maker.record_count:
            raise InvalidRecord(problem="clients write records; control blocks and empty ones are the node's own")
        if maker.producer == NO_PRODUCER:
            return
        if maker.kind != BlockKind.MESSAGES or not maker.base_seq:
            raise InvalidRecord(problem="a producer writes messages, numbered from 1; leave out its id for others")
        producer_id = int.from_bytes(maker.producer[:_PRODUCER_ID_BYTES], "little")
        epoch = int.from_bytes(maker.producer[_PRODUCER_ID_BYTES:], "little")
        record = self._channels.catalog.producer(producer_id)
        if record is None and self._channels.catalog.was_opened(producer_id):
            raise UnknownProducer(producer=producer_id)  # it was closed: a client that still uses it opens it anew
        if record is None or (record.channel_id == channel.channel_id and epoch > record.epoch):
            # It was opened at the metadata leader, and this node's catalog may not have it yet.
            raise ProducerNotYetKnown(channel=channel.name, producer=producer_id, epoch=epoch)
        if record.channel_id != channel.channel_id:
            raise UnknownProducer(producer=producer_id)
        if record.owner != client.principal:
            raise ProducerOwned(name=record.name, owner=record.owner)
        if epoch < record.epoch:
            raise ProducerFenced(channel=channel.name, epoch=epoch, newest=record.epoch)

    # --- answers ---------------------------------------------------------------------------------------------

    def release(self, client: ClientLink, size: int) -> None:
        client.in_flight_bytes -= size
        self.in_flight_bytes -= size

    def answer(self, client: ClientLink, produced: Produced) -> None:
        if client.link.is_closed:
            return
        if produced.error is None:
            self.blocks_taken += 1
        else:
            self.blocks_refused += 1
            error = with_address(produced.error, self._channels)
            if error is not produced.error:
                produced = Produced(token=produced.token, error=error)
        if not client.answers:
            self._answered.append(client)
        client.answers.append(produced)
        if not self._flush_is_due:
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Send the answers now; without this call they are sent after this turn of the loop."""
        self._flush_is_due = False
        answered, self._answered = self._answered, []
        for client in answered:
            answers, client.answers = client.answers, []
            try:
                for body in _bodies(answers):
                    client.link.put(PRODUCED, body)
                client.link.flush()
            except LinkBusy:
                client.link.abort("the client does not take its answers")  # PR4
            except LinkClosed:
                continue  # the client finds out about its blocks on its next link


class _Receipt:
    """Takes the one answer for one block (PR1)."""

    __slots__ = ("_client", "_producing", "_size", "_token")

    def __init__(self, producing: Producing, client: ClientLink, token: int, size: int) -> None:
        self._producing: Producing | None = producing
        self._client = client
        self._token = token
        self._size = size

    def __call__(self, produced: Produced) -> None:
        producing = self._producing
        assert producing is not None, "PR1: a block is answered once"
        assert produced.token == self._token, "PR1: the answer is for another block"
        self._producing = None
        producing.release(self._client, self._size)
        producing.answer(self._client, produced)


def _bodies(answers: list[Produced]) -> list[bytes]:
    """Each fits in one small frame of the link, so that answers stay in order and none waits behind large bodies."""
    bodies = []
    parts: list[bytes] = []
    size = 0
    for answer in answers:
        own = encode_produced((answer,))
        own_bytes = sum(map(len, own))
        if parts and size + own_bytes > SMALL_BYTES_MAX:
            bodies.append(b"".join(parts))
            parts, size = [], 0
        parts += own
        size += own_bytes
    bodies.append(b"".join(parts))
    return bodies


def known_channel(catalog: Catalog, channel_id: int) -> ChannelRecord:
    """Raises `ChannelDeleted` or `UnknownChannel`."""
    channel = catalog.channel(channel_id)
    if channel is not None:
        return channel
    if catalog.was_deleted(channel_id):
        raise ChannelDeleted(channel_id=channel_id)
    raise UnknownChannel(channel=f"id {channel_id}")


def with_address(error: LogError, channels: LocalChannels) -> LogError:
    """A named leader comes with its address: the client may not know it."""
    if not isinstance(error, NotChannelLeader) or error.address or error.leader is None:
        return error
    record = channels.catalog.node(error.leader)
    address = "" if record is None else dict(record.addresses).get("link", "")
    if not address:
        return error
    return NotChannelLeader(
        channel=error.channel, leader=error.leader, address=address, leader_epoch=error.leader_epoch
    )
