"""Requests to a node: changes of the catalog, linearizable reads, leadership. Any node takes any of them.

A node that does not lead the metadata passes them on to the leader, one hop. `NotLeader` and similar refusals are
retried until the deadline; a request that may have taken effect is not retried, and its error says so (`definite` is
False).
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from tidelog.cluster.metadata.member import Done
from tidelog.cluster.node.driver import NodeDriver
from tidelog.cluster.status.node_status import record_json
from tidelog.codecs.node_codec import PROPOSE, READ, READ_INDEX, STATUS, TRANSFER
from tidelog.core.catalog import AdmitNode, Change, RemoveNode, decode_change, encode_change
from tidelog.core.membership import node_of
from tidelog.errors import BadMessage, LogError, NotLeader, UnknownNode, WaitTimedOut
from tidelog.storage.log.writer import session_clock_us, steady_clock_ms

REQUEST_MS: Final = 5_000
READ_TRY_MS: Final = 500
"""The wait for one answer of the leader to a read: shorter than any election."""
RETRY_MS: Final = 25
"""Between two attempts while there is no leader."""
_TRY_AGAIN: Final = frozenset(
    ("not_leader", "leadership_moving", "too_many_proposals", "too_many_reads", "link_busy", "peer_unreachable")
)
"""Codes of temporary refusals that do not concern the request itself."""

_COMMITS_KEPT: Final = 100

T = TypeVar("T")


class NodeRequests:
    def __init__(self, driver: NodeDriver, *, status: Callable[[], dict[str, Any]]) -> None:
        self._driver = driver
        self._status = status
        self.commits_us: deque[int] = deque(maxlen=_COMMITS_KEPT)
        """Microseconds from proposal to application of the last changes proposed here."""

    async def answer(self, kind: int, body: bytes, *, from_operator: bool) -> bytes:
        """A request that came over the link."""
        match kind:
            case _ if kind == PROPOSE:
                change = decode_change(body)
                if not from_operator:
                    index = await self.propose_here(change)
                elif isinstance(change, AdmitNode | RemoveNode):
                    index = await self.propose(change)
                else:
                    raise BadMessage(problem="an operator adds and removes nodes; other changes go through a client")
                found: dict[str, Any] = {"index": index}
            case _ if kind == READ_INDEX:
                found = {"index": await self._read_index_here(REQUEST_MS)}
            case _ if kind == READ:
                found = await self._read_record(body)
            case _ if kind == STATUS:
                found = self._status()
            case _ if kind == TRANSFER:
                found = {"leader": await self.transfer(body.decode("ascii", "replace") or None)}
            case _:
                raise BadMessage(problem=f"no request has kind {kind:#06x}")
        return json.dumps(found).encode()

    def commit_p50_ms(self) -> float | None:
        """The median of the last hundred changes that were proposed here; None before the first."""
        taken = sorted(self.commits_us)
        return taken[len(taken) // 2] / 1000 if taken else None

    # --- changes -------------------------------------------------------------------------------------------

    async def propose(self, change: Change, *, timeout_ms: int = REQUEST_MS) -> int:
        """Propose a change, here or at the leader; returns the index it was committed at.

        Refusals of the catalog are raised, typed. Other errors say by `definite` whether it may have been applied.
        """

        async def attempt(left_ms: int) -> int:
            if self._driver.core.is_leader:
                return await self.propose_here(change, timeout_ms=left_ms)
            return int((await self._ask_leader(PROPOSE, encode_change(change), left_ms))["index"])

        return await self._until_led(attempt, timeout_ms)

    async def propose_here(self, change: Change, *, timeout_ms: int = REQUEST_MS) -> int:
        """Only if this node leads."""
        core = self._driver.core
        token = core.new_token()
        began_us = session_clock_us()
        result = await self._driver.wait_for(
            token, lambda: core.propose(change, token), timeout_ms=timeout_ms, what="the commit"
        )
        assert isinstance(result, Done)
        self.commits_us.append(session_clock_us() - began_us)
        result.applied.raise_refusal()
        return result.applied.index

    # --- reads ---------------------------------------------------------------------------------------------

    async def read_barrier(self, *, timeout_ms: int = REQUEST_MS) -> int:
        """Wait until the catalog here holds everything that was committed before the call."""

        async def attempt(left_ms: int) -> int:
            core = self._driver.core
            if core.is_leader:
                return await self._read_index_here(left_ms)
            index = await self._leaders_read_index(left_ms)
            token, member = core.new_token(), core.member
            if member is None:
                raise NotLeader(leader=core.leader)
            await self._driver.wait_for(
                token,
                lambda: member.wait_applied(index, token),
                timeout_ms=left_ms,
                what="the catalog to catch up",
            )
            return index

        return await self._until_led(attempt, timeout_ms)

    async def wait_applied(self, index: int, *, timeout_ms: int) -> None:
        """Wait until the catalog here has applied this index."""
        core = self._driver.core
        token, member = core.new_token(), core.member
        if member is None:
            raise NotLeader(leader=core.leader)
        await self._driver.wait_for(
            token,
            lambda: member.wait_applied(index, token),
            timeout_ms=timeout_ms,
            what="the catalog to catch up",
        )

    async def _leaders_read_index(self, timeout_ms: int) -> int:
        """Give up on a leader that hangs before the deadline: a read can be repeated at the next leader."""
        try:
            return int((await self._ask_leader(READ_INDEX, b"", min(timeout_ms, READ_TRY_MS)))["index"])
        except LogError as error:
            if error.definite:
                raise
            raise NotLeader(leader=None) from error

    async def _read_index_here(self, timeout_ms: int) -> int:
        core = self._driver.core
        token, member = core.new_token(), core.member
        if member is None or not core.is_leader:
            raise NotLeader(leader=core.leader)
        await self._driver.wait_for(token, lambda: member.read(token), timeout_ms=timeout_ms, what="a majority")
        return member.applied_index

    async def _read_record(self, body: bytes) -> dict[str, Any]:
        """A linearizable read of one record: {"channel": name} or {"node": id}."""
        try:
            ((what, name),) = json.loads(body).items()
        except (ValueError, AttributeError, RecursionError) as error:
            raise BadMessage(problem="a read asks for one channel or one node") from error
        if what not in ("channel", "node") or not isinstance(name, str):
            raise BadMessage(problem="a read asks for one channel or one node")
        await self.read_barrier()
        catalog = self._driver.core.catalog
        assert catalog is not None
        record = catalog.channel(name) if what == "channel" else catalog.node(name)
        return {"index": catalog.applied_index, what: None if record is None else record_json(record)}

    # --- leadership ------------------------------------------------------------------------------------------

    async def transfer(self, target: str | None, *, timeout_ms: int = REQUEST_MS) -> str:
        """Move leadership of the metadata to `target`, or to the best voter. Returns the new leader."""
        core = self._driver.core
        if not core.is_leader:
            return str((await self._ask_leader(TRANSFER, (target or "").encode(), timeout_ms))["leader"])
        assert core.member is not None
        raft = core.member.raft
        leading = raft.leading
        assert leading is not None
        voters = [voter for voter in raft.members.voters if voter != raft.me]
        heirs = [voter for voter in voters if target is None or node_of(voter) == target]
        if not heirs:
            if target == core.node or (target is None and not voters):
                return core.node
            raise UnknownNode(node=target or core.node)
        core.member.transfer(
            max(heirs, key=lambda voter: (leading.progress[voter].match, voter)), self._driver.now_ms()
        )
        self._driver.pump_soon()
        deadline_ms = steady_clock_ms() + timeout_ms
        while steady_clock_ms() < deadline_ms:
            if raft.leader is not None and raft.leader != raft.me:
                return node_of(raft.leader)
            await asyncio.sleep(RETRY_MS / 1000)
        raise WaitTimedOut(waiting_for="the new leader", deadline_s=timeout_ms / 1000)

    # --- finding the leader -------------------------------------------------------------------------------

    async def _ask_leader(self, kind: int, body: bytes, timeout_ms: int) -> dict[str, Any]:
        core = self._driver.core
        leader = core.leader
        if leader is None or leader == core.node:
            raise NotLeader(leader=None)
        answer = await self._driver.pool.request(leader, kind, body, timeout_ms=timeout_ms)
        found: dict[str, Any] = json.loads(bytes(answer))
        return found

    async def _until_led(self, attempt: Callable[[int], Awaitable[T]], timeout_ms: int) -> T:
        """Retry while there is no leader, until the time is up."""
        deadline_ms = steady_clock_ms() + timeout_ms
        while True:
            try:
                return await attempt(max(1, deadline_ms - steady_clock_ms()))
            except LogError as error:
                if error.code not in _TRY_AGAIN or steady_clock_ms() + RETRY_MS >= deadline_ms:
                    raise
            await asyncio.sleep(RETRY_MS / 1000)
