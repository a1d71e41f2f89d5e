"""An operator's way into a cluster: requests to any node that answers, with an operator's certificate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from tidelog.codecs.node_codec import PROPOSE, READ, STATUS, TRANSFER
from tidelog.core.catalog import AdmitNode, Change, RemoveNode, encode_change
from tidelog.errors import BadMessage, LogError, PeerUnreachable
from tidelog.transports.link.link import Buffers, Link, LinkEnd, LinkIdentity, LinkTls, dial_link

OPERATOR: Final = "operator"


class _Deaf:
    """Refuses requests: an operator's tool answers none."""

    def on_message(self, link: Link, kind: int, body: memoryview) -> None:
        raise BadMessage(problem="an operator's tool takes no messages")

    def on_turn(self) -> None:
        """The tool delays no message."""

    async def on_request(self, link: Link, kind: int, body: memoryview) -> Buffers:
        raise BadMessage(problem="an operator's tool answers nothing")


class ClusterClient:
    """Tries the addresses in turn until one answers."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        tls: LinkTls | None,
        name: str = OPERATOR,
        insecure_dev: bool = False,
        timeout_ms: int = 10_000,
    ) -> None:
        self._addresses = list(addresses)
        self._end = LinkEnd(
            identity=lambda: LinkIdentity(node=name, cluster=b""), tls=tls, insecure_dev=insecure_dev, kind="operator"
        )
        self._timeout_ms = timeout_ms
        self._link: Link | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()

    async def _connected(self) -> Link:
        if self._link is not None and not self._link.is_closed:
            return self._link
        problem: LogError = PeerUnreachable(address="", problem="no address was given")
        for address in self._addresses:
            try:
                self._link = await dial_link(address, end=self._end, handler=_Deaf())
                return self._link
            except LogError as error:
                problem = error
        raise problem

    async def _ask(self, kind: int, body: bytes) -> dict[str, Any]:
        link = await self._connected()
        answer = await link.request(kind, body, timeout_ms=self._timeout_ms)
        found: dict[str, Any] = json.loads(bytes(answer))
        return found

    async def status(self) -> dict[str, Any]:
        """The status of the node that answered; `leader_status` is the leader's, if that is another one and answers."""
        status = await self._ask(STATUS, b"")
        status["leader_status"] = None
        leader = next((node for node in status["nodes"] if node["node"] == status["leader"]), None)
        if leader is not None and status["leader"] != status["node"]:
            address = leader["addresses"].get("link")
            other = ClusterClient([address], tls=self._end.tls, insecure_dev=self._end.insecure_dev)
            other._end = self._end
            try:
                async with other:
                    status["leader_status"] = await other._ask(STATUS, b"")
            except LogError as error:
                status["leader_problem"] = str(error)
        return status

    async def propose(self, change: Change) -> int:
        """The index at which it was committed; a refusal is raised."""
        return int((await self._ask(PROPOSE, encode_change(change)))["index"])

    async def add(self, node: str) -> None:
        """Admit this node: it is registered when it comes."""
        await self.propose(AdmitNode(node=node))

    async def remove(self, node: str, *, force: bool = False) -> None:
        await self.propose(RemoveNode(node=node, force=force))

    async def transfer(self, node: str | None = None) -> str:
        """Move leadership of the metadata; returns the node that leads then."""
        return str((await self._ask(TRANSFER, (node or "").encode()))["leader"])

    async def read(self, what: str, name: str) -> dict[str, Any]:
        """A linearizable read of one `channel` or `node`."""
        return await self._ask(READ, json.dumps({what: name}).encode())
