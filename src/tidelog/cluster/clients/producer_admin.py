"""Producers of a channel, closed and listed: for clients that are done with one, and for operators.

A closed producer is gone from the catalog: blocks under it are refused with `UnknownProducer`, whatever its dedup
state, and its id is never used again. A client that still uses it opens it again.
"""

from __future__ import annotations

from typing import Any, Final

from tidelog.cluster.clients.access import ADMIN, WRITE, ClientAccess
from tidelog.cluster.clients.requests import ProducersRequest, read_close_producer
from tidelog.cluster.local_channels import LocalChannels, LocalReplica
from tidelog.core.catalog import Catalog, CloseProducer, ProducerRecord
from tidelog.errors import LogError, ProducerOwned, StaleProducerEpoch, UnknownChannel, UnknownProducer

LISTED_MAX: Final = 1_000
_SETTLED: Final = frozenset({UnknownProducer.code, StaleProducerEpoch.code})


async def close_producer(
    channels: LocalChannels, access: ClientAccess, plain: dict[str, Any], principal: str, *, timeout_ms: int
) -> dict[str, Any]:
    """Close a producer for its owner or an administrator of the channel. `closed` is False if it was closed already."""
    request = read_close_producer(plain)
    access.require(principal, request.channel, WRITE, ADMIN)
    channel = channels.catalog.channel(request.channel)
    if channel is None:
        raise UnknownChannel(channel=request.channel)
    record = _meant(channels.catalog, channel.channel_id, request.name, request.producer_id)
    closed = False
    if record is not None and request.epoch in (0, record.epoch):
        if record.owner != principal and not access.allows(principal, request.channel, ADMIN):
            raise ProducerOwned(name=record.name, owner=record.owner)
        change = CloseProducer(producer_id=record.producer_id, expected_epoch=record.epoch)
        try:
            await channels.propose(change, timeout_ms=timeout_ms)
            closed = True
        except LogError as error:
            if error.code not in _SETTLED:
                raise
    return {"closed": closed, "index": channels.catalog.applied_index}


def _meant(catalog: Catalog, channel_id: int, name: str, producer_id: int) -> ProducerRecord | None:
    record = catalog.producer_named(channel_id, name) if name else catalog.producer(producer_id)
    return record if record is not None and record.channel_id == channel_id else None


def listed(catalog: Catalog, replica: LocalReplica, request: ProducersRequest) -> dict[str, Any]:
    """A page of a channel's producers by id, with when each last wrote as far as the leader's fold knows."""
    fold = replica.fold
    limit = max(1, min(request.limit, LISTED_MAX))
    found = [one for one in catalog.producers_of(request.channel_id) if one.producer_id > request.after]
    page = found[:limit]
    return {
        "producers": [
            {
                "producer_id": one.producer_id,
                "name": one.name,
                "owner": one.owner,
                "epoch": one.epoch,
                "opened_at_ms": one.opened_at_ms,
                "used_at_ms": None if fold is None else fold.used_ms(one.producer_id),
            }
            for one in page
        ],
        "next": page[-1].producer_id if len(found) > limit else None,
    }
