"""Channels of a `ClusterKit` for benchmarks: made, found, counted and deleted, over an operator's link.

    channel = await create_channel(kit, "bench-1", factor=3)
    link = await dial_channel(kit, channel.leader, handler)
    assert await count_records(link, channel) == acked

What a caller must keep: close every link.

KCK1  A channel is given out when its leader leads, and every replica is in sync.
KCK2  Counting looks at every block that is committed, verified, and finds no gap and no overlap between them.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks.kits.cluster_kit import OPERATOR, ClusterKit
from tidelog.blocks.block import Block, iterate_blocks
from tidelog.blocks.header import BlockKind
from tidelog.codecs.client_codec import (
    ALTER,
    CREATE,
    DESCRIBE,
    FETCH,
    OFFSETS,
    decode_answer,
    decode_fetched,
    encode_fetch,
    encode_json,
)
from tidelog.codecs.error_codec import error_of_json
from tidelog.core.client_messages import Fetch, Fetched
from tidelog.errors import BadMessage, LogError, WaitTimedOut
from tidelog.transports.link.link import Buffers, Link, LinkEnd, LinkHandler, LinkIdentity, LinkOptions, dial_link
from tidelog.units import MIB

CHANNEL_S: Final = 60.0
ASK_MS: Final = 20_000
RETRY_S: Final = 0.2
FETCH_BYTES: Final = 4 * MIB
CREATE_AT_ONCE: Final = 500

_names = itertools.count(1)


class WrongRecords(RuntimeError):
    """A channel does not hold what was acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchChannel:
    name: str
    channel_id: int
    leader: str
    leader_epoch: int
    replicas: tuple[str, ...]

    def at(self, node: str) -> BenchChannel:
        """As one who is wrong about its leader sees it."""
        return replace(self, leader=node)


class Silent:
    """A caller that asks and is told nothing else."""

    def on_turn(self) -> None:
        """Nothing is put off."""

    def on_message(self, link: Link, kind: int, body: memoryview) -> None:
        raise BadMessage(problem=f"nobody waits for a message of kind {kind:#06x}")

    async def on_request(self, link: Link, kind: int, body: memoryview) -> Buffers:
        raise BadMessage(problem="a benchmark answers nothing")


async def dial_node(kit: ClusterKit, node: str, handler: LinkHandler | None = None) -> Link:
    """An operator's link to a node; close it."""
    end = LinkEnd(
        identity=lambda: LinkIdentity(node=OPERATOR, cluster=b""),
        tls=kit.tls(OPERATOR),
        kind="operator",
        options=LinkOptions(handshake_timeout_ms=2_000),
    )
    return await dial_link(kit.address(node), end=end, handler=handler or Silent(), expected=node)


async def ask(link: Link, kind: int, request: dict[str, Any]) -> dict[str, Any]:
    """One request of the client protocol; what is refused is raised."""
    return decode_answer(await link.request(kind, encode_json(request), timeout_ms=ASK_MS))


def fresh_name(word: str = "bench") -> str:
    return f"{word}-{next(_names)}"


async def create_channel(kit: ClusterKit, name: str | None = None, /, **config: object) -> BenchChannel:
    """A channel that is whole (KCK1); `config` holds what differs from the defaults."""
    name = name or fresh_name()
    link = await dial_node(kit, kit.running[0])
    try:
        await create_channels(link, [name], **config)
        return await wait_whole(kit, link, name)
    finally:
        await link.close()


async def create_channels(link: Link, names: Sequence[str], **config: object) -> None:
    """Any number of channels alike. Asking twice is harmless, so what may yet succeed is asked for again."""
    for start in range(0, len(names), CREATE_AT_ONCE):
        wanted: list[dict[str, object]] = [
            {"name": name, "config": config} for name in names[start : start + CREATE_AT_ONCE]
        ]
        end = time.monotonic() + CHANNEL_S
        while (error := await _create(link, wanted)) is not None:
            if not (error.retriable or isinstance(error, WaitTimedOut)) or time.monotonic() >= end:
                raise error
            await asyncio.sleep(RETRY_S)


async def _create(link: Link, wanted: list[dict[str, object]]) -> LogError | None:
    """The first thing that went wrong, if any."""
    try:
        answer = await ask(link, CREATE, {"channels": wanted})
    except LogError as error:
        return error
    refused = [result["error"] for result in answer["results"] if "error" in result]
    return error_of_json(refused[0]) if refused else None


async def describe(link: Link, name: str) -> dict[str, Any]:
    found: dict[str, Any] = (await ask(link, DESCRIBE, {"channels": [name], "barrier": True}))["channels"][0]
    return found


async def wait_whole(kit: ClusterKit, link: Link, name: str, *, deadline_s: float = CHANNEL_S) -> BenchChannel:
    """Until the channel is led and all its replicas are in sync (KCK1)."""
    found: dict[str, Any] = {}

    async def is_whole() -> bool:
        nonlocal found
        try:
            found = await describe(link, name)
        except LogError as error:
            if not error.retriable:
                raise
            return False
        return found["leader"] is not None and sorted(found["isr"]) == sorted(found["replicas"])

    await kit.wait(is_whole, deadline_s=deadline_s, what=f"channel {name} and its replicas")
    await _wait_leads(kit, found["leader"], name, deadline_s=deadline_s)
    return BenchChannel(
        name=name,
        channel_id=found["channel_id"],
        leader=found["leader"],
        leader_epoch=found["leader_epoch"],
        replicas=tuple(found["replicas"]),
    )


async def _wait_leads(kit: ClusterKit, leader: str, name: str, *, deadline_s: float) -> None:
    """Until the leader itself has heard of it: others may know first."""
    link = await dial_node(kit, leader)

    async def does_lead() -> bool:
        here = (await describe(link, name))["here"]
        return here is not None and here["role"] == "leader"

    try:
        await kit.wait(does_lead, deadline_s=deadline_s, what=f"{leader} to lead channel {name}")
    finally:
        await link.close()


async def delete_channel(kit: ClusterKit, name: str) -> None:
    link = await dial_node(kit, kit.running[0])
    try:
        await ask(
            link,
            ALTER,
            {
                "channel": name,
                "op": "delete",
                "config": {},
                "replicas": None,
                "leader": None,
                "unclean": False,
                "operator": "",
                "expected_channel_epoch": None,
            },
        )
    finally:
        await link.close()


async def committed_end(link: Link, channel_id: int) -> int:
    return int((await ask(link, OFFSETS, {"channel_id": channel_id, "at": "latest"}))["committed_end"])


async def fetch(link: Link, channel_id: int, offset: int, *, wait_ms: int = 0) -> Fetched:
    request = Fetch(channel_id=channel_id, offset=offset, bytes_max=FETCH_BYTES, wait_ms=wait_ms)
    return decode_fetched(await link.request(FETCH, encode_fetch(request), timeout_ms=wait_ms + ASK_MS))


async def all_blocks(link: Link, channel_id: int) -> list[Block]:
    """Every committed block, verified, without a gap (KCK2)."""
    return [block async for block in _blocks(link, channel_id)]


async def _blocks(link: Link, channel_id: int) -> Any:
    end, offset = await committed_end(link, channel_id), 0
    until = time.monotonic() + CHANNEL_S
    while offset < end:
        fetched = await fetch(link, channel_id, offset)
        for data in fetched.data:
            for block in iterate_blocks(data):
                if block.offsets.start != offset:
                    raise WrongRecords(f"after offset {offset} comes {block.offsets.start} (KCK2)")
                offset = block.offsets.stop
                yield block
        if time.monotonic() >= until:
            raise WaitTimedOut(waiting_for=f"all of channel {channel_id}", deadline_s=CHANNEL_S)


async def count_records(link: Link, channel_id: int) -> int:
    """Records of clients that are committed; control blocks are not counted."""
    count = 0
    async for block in _blocks(link, channel_id):
        if block.maker.kind == BlockKind.MESSAGES:
            count += block.maker.record_count
    return count


async def require_records(link: Link, channel_id: int, acked: int) -> None:
    """The channel holds exactly what was acknowledged."""
    held = await count_records(link, channel_id)
    if held != acked:
        raise WrongRecords(f"the channel holds {held} records, acknowledged were {acked}")
