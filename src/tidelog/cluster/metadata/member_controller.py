"""The metadata leader's work for nodes: it registers them, watches their sessions, fences silent ones, and keeps the
members of the group in line with the catalog. On every other node it does nothing.

LE1  Only the metadata leader fences nodes, and only by a change that is committed.
LE2  A node is not registered with a new disk while the process with its old one is alive.
LE3  A session is renewed only for an incarnation that the catalog holds active.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from tidelog.cluster.metadata.member import Done, MetadataMember, RequestFailed, Result
from tidelog.core.catalog import (
    AdmitNode,
    Batch,
    Catalog,
    Change,
    FenceNode,
    FoundCluster,
    NodeState,
    RegisterNode,
    RemoveNode,
)
from tidelog.core.liveness import LivenessConfig, RenewSession, SessionRefused, SessionRenewed, Sessions
from tidelog.core.membership import Handover, next_step
from tidelog.core.node_messages import RegisterRefused
from tidelog.errors import LogError


class MemberController:
    def __init__(
        self,
        *,
        node: str,
        peers: tuple[str, ...],
        liveness: LivenessConfig,
        voters_max: int,
        say: Callable[..., None],
    ) -> None:
        self.node = node
        self.sessions = Sessions(config=liveness)
        self._peers = peers
        self._voters_max = voters_max
        self._say = say
        self._tokens = count(-1, -1)
        """Below zero, where no caller's tokens are."""
        self._own: dict[int, Change] = {}
        self.is_leading = False
        self._term = 0
        """The term in which it leads."""

    def lead(self, member: MetadataMember, cluster: bytes, now_ms: int) -> None:
        """Everything a leader has to do now."""
        if not member.is_leader:
            if self.is_leading:
                self.is_leading = False
                self.sessions.step_down()
            return
        if not self.is_leading or member.raft.term != self._term:
            # Also when leadership returned between two calls: others may have renewed sessions meanwhile (L2).
            self.is_leading, self._term = True, member.raft.term
            self._begin(member, now_ms)
        self._found(member, cluster)
        for lost in self.sessions.wake(now_ms):
            try:
                self._propose(member, FenceNode(node=lost.node, expected_incarnation=lost.incarnation))
            except LogError:
                self.sessions.keep(lost.node, now_ms)
        self._step(member, now_ms)

    def _leads(self, member: MetadataMember) -> bool:
        """Whether the leadership that was begun last is the present one: before that the catalog may lack a fence."""
        return self.is_leading and member.raft.term == self._term and member.is_leader

    def _begin(self, member: MetadataMember, now_ms: int) -> None:
        catalog = member.catalog
        # A registration that an earlier leadership proposed and lost has an outcome only when the log reaches that
        # place again; until then it would count as in progress, and its node would wait.
        member.forget(*self._own)  # all at once: there may be thousands
        self._own.clear()
        self.sessions.leader_since(
            now_ms, _incarnations(catalog, NodeState.ACTIVE), _incarnations(catalog, NodeState.FENCED)
        )
        self._say("leading", term=member.raft.term)

    def _found(self, member: MetadataMember, cluster: bytes) -> None:
        """The first leader founds the cluster, with its peers. Repeated if it was refused: an operator may have
        admitted one of them before, which is no reason to leave the others out for ever."""
        catalog = member.catalog
        if catalog.cluster_id or any(isinstance(own, Batch) for own in self._own.values()):
            return
        admitted = tuple(AdmitNode(node=peer) for peer in self._peers if catalog.node(peer) is None)
        try:
            self._propose(member, Batch(changes=(FoundCluster(cluster_id=cluster.hex()), *admitted)))
        except LogError:
            return  # the next call tries again

    def _step(self, member: MetadataMember, now_ms: int) -> None:
        step = next_step(member.raft, member.catalog, voters_max=self._voters_max)
        if step is None:
            return
        try:
            if isinstance(step, Handover):
                member.transfer(step.member, now_ms)
            else:
                member.propose_members(step)
        except LogError as error:
            self._say("membership refused", step=type(step).__name__, member=step.member, reason=error)
        else:
            self._say("membership", step=type(step).__name__, member=step.member)

    # --- nodes that ask --------------------------------------------------------------------------------

    def register(self, member: MetadataMember | None, change: RegisterNode) -> RegisterRefused | None:
        """A node asks to be registered. There is no answer if that succeeds: the node sees it in the catalog."""
        if member is None or not self._leads(member):
            return None
        known = member.catalog.node(change.node)
        incarnation = 0 if known is None else known.incarnation
        if known is not None and known.process_id == change.process_id and incarnation == change.incarnation:
            return None  # it is registered already
        if any(change.incarnation == own.incarnation and change.node == own.node for own in self._registering()):
            return None  # a repeated request; the answer to the first is on its way
        if (
            known is not None
            and known.disk_id not in ("", change.disk_id)
            and known.state is NodeState.ACTIVE
            and self.sessions.is_live(change.node)
        ):
            return RegisterRefused(
                reason=f"{change.node} is alive with another disk; stop that process first", incarnation=incarnation
            )
        refusal = member.catalog.check(change)
        if refusal is not None:
            return RegisterRefused(reason=str(refusal), incarnation=incarnation)
        try:
            self._propose(member, change)
        except LogError as error:
            return RegisterRefused(reason=str(error), incarnation=incarnation)
        return None

    def _registering(self) -> list[RegisterNode]:
        return [change for change in self._own.values() if isinstance(change, RegisterNode)]

    def renew(
        self, member: MetadataMember | None, renewal: RenewSession, now_ms: int
    ) -> SessionRenewed | SessionRefused | None:
        leading = None if member is None else member.raft.leading
        if member is None or leading is None or not self._leads(member) or leading.confirmed_ms is None:
            return None
        record = member.catalog.node(renewal.node)
        if record is None or record.incarnation < renewal.incarnation:
            return None  # registered, and not applied here yet
        if record.incarnation != renewal.incarnation or record.state is not NodeState.ACTIVE:
            return SessionRefused(node=renewal.node, incarnation=renewal.incarnation)  # LE3
        return self.sessions.renew(
            renewal.node, renewal.incarnation, now_ms, counter=renewal.counter, confirmed_ms=leading.confirmed_ms
        )

    # --- what became of proposals ------------------------------------------------------------------------

    def _propose(self, member: MetadataMember, change: Change) -> None:
        token = next(self._tokens)
        member.propose(change, token)
        self._own[token] = change

    def propose_unwatched(self, member: MetadataMember, change: Change) -> None:
        """Raises if it cannot be proposed; the catalog shows the outcome."""
        self._propose(member, change)

    def owns(self, result: Result) -> bool:
        return result.token in self._own

    def settle(self, member: MetadataMember, result: Result, now_ms: int) -> tuple[str, RegisterRefused] | None:
        """The outcome of one of this controller's proposals; a node that was refused after all is told."""
        change = self._own.pop(result.token)
        refusal: object = None
        if isinstance(result, Done):
            refusal = result.applied.refusal
        elif isinstance(result, RequestFailed):
            refusal = result.error
        if refusal is None:
            return None
        if isinstance(change, FenceNode):
            self.sessions.keep(change.node, now_ms)
        elif isinstance(change, RegisterNode):
            known = member.catalog.node(change.node)
            incarnation = 0 if known is None else known.incarnation
            return change.node, RegisterRefused(reason=str(refusal), incarnation=incarnation)
        return None

    def applied(self, change: Change, now_ms: int) -> None:
        """The catalog has applied this change."""
        match change:
            case FenceNode():
                self.sessions.fence(change.node, change.expected_incarnation)
            case RemoveNode():
                self.sessions.forget(change.node)
            case RegisterNode() if self.is_leading:
                self.sessions.renew(change.node, change.incarnation, now_ms)
            case _:
                pass


def _incarnations(catalog: Catalog, state: NodeState) -> dict[str, int]:
    return {record.node: record.incarnation for record in catalog.nodes() if record.state is state}
