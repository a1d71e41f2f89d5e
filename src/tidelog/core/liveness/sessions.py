"""Sessions of nodes with the metadata leader: which nodes were silent too long, and when a node must stop relying on
its own.

Nothing here does I/O. `Sessions` runs at the metadata leader: the caller turns each `SessionLost` into a proposal to
fence the node. `SessionHolder` runs on every node, the leader's own included: it renews on each heartbeat interval and
knows without any message when it can no longer rely on its session.

What a caller must keep: call `leader_since` when leadership begins, once the first entry of the new term is applied
(a fence of the term before may still be among the entries), and `step_down` when it ends; call `wake` when `wake_at_ms`
says so. Tell `renew` when the last round of leadership proofs that a majority answered was *begun*; before the first
one, when the campaign was. The clock is steady and goes on while the machine is suspended.

L1  While a node relies on its session, no metadata leader has ended it, whatever happens to messages, as long as clocks
    run at most half the margin wrong. The node counts from the sending of a renewal and stops a margin early. (An
    operator may fence a healthy node; it learns that from the catalog.)
L2  A new metadata leader ends no session before a whole timeout has passed, nor does one that was itself paused.
L3  A lost session is reported once, until the node is kept or comes back with a higher incarnation.
L4  A fenced incarnation never gets a session again, nor does a lower one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from tidelog.core.liveness.config import LivenessConfig, believed_ms
from tidelog.core.liveness.messages import RenewSession, SessionLost, SessionRefused, SessionRenewed
from tidelog.errors import TooManyNames

_UNANSWERED_MAX: Final = 16
_WAKES_PER_TIMEOUT: Final = 4
_PAUSE_PER_TIMEOUT: Final = 2
"""A leader not woken for half a timeout was paused: renewals may wait unread in its buffers."""

Answer: TypeAlias = SessionRenewed | SessionRefused


@dataclass(slots=True)
class _Session:
    incarnation: int
    expires_ms: int
    lost: bool = False
    """The session of this incarnation was lost, or it was fenced."""

    def is_over(self, incarnation: int) -> bool:
        """L4. A lower incarnation is an older process of the node, or a delayed message of one."""
        return incarnation < self.incarnation or (self.lost and incarnation == self.incarnation)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatistics:
    """Counters since the start."""

    live: int
    lost: int
    renewals: int
    losses: int
    fenced_answers: int
    graces: int
    """How often all sessions were extended because the leader itself had been paused (L2)."""


class Sessions:
    """The metadata leader's side. Does nothing while this node does not lead."""

    def __init__(self, *, config: LivenessConfig) -> None:
        self._config = config
        self._sessions: dict[str, _Session] = {}
        self._woken_ms: int | None = None
        self._renewals = self._losses = self._fenced_answers = self._graces = 0

    @property
    def is_leading(self) -> bool:
        return self._woken_ms is not None

    def leader_since(self, now_ms: int, nodes: Mapping[str, int], fenced: Mapping[str, int] | None = None) -> None:
        """Leadership begins. `nodes` are the live ones with their incarnations, `fenced` those that are fenced."""
        fenced = fenced or {}
        if len(nodes) + len(fenced) > self._config.nodes_max:
            raise TooManyNames(names_max=self._config.nodes_max)
        expires_ms = now_ms + self._config.session_timeout_ms
        self._sessions = {node: _Session(incarnation, expires_ms) for node, incarnation in nodes.items()}
        for node, incarnation in fenced.items():
            self._sessions[node] = _Session(incarnation, expires_ms, lost=True)
        self._woken_ms = now_ms

    def step_down(self) -> None:
        self._sessions.clear()
        self._woken_ms = None

    def renew(
        self, node: str, incarnation: int, now_ms: int, *, counter: int = 0, confirmed_ms: int | None = None
    ) -> Answer | None:
        """A renewal arrived; returns the answer to it, or None while this node does not lead.

        `confirmed_ms` is when the last round was begun in which a majority confirmed that this node leads. Without it
        the caller guarantees that this is so now (L1). The caller lets in only nodes that the catalog knows.
        """
        if self._woken_ms is None:
            return None
        session = self._sessions.get(node)
        if session is None and len(self._sessions) >= self._config.nodes_max:
            raise TooManyNames(names_max=self._config.nodes_max)
        if session is not None and session.is_over(incarnation):
            self._fenced_answers += 1
            return SessionRefused(node=node, incarnation=incarnation)
        self._renewals += 1
        self._sessions[node] = _Session(incarnation, now_ms + self._config.session_timeout_ms)
        return SessionRenewed(
            node=node,
            incarnation=incarnation,
            counter=counter,
            timeout_ms=self._config.session_timeout_ms,
            confirmed_ago_ms=0 if confirmed_ms is None else max(0, now_ms - confirmed_ms),
        )

    def keep(self, node: str, now_ms: int) -> None:
        """The proposal to fence the node failed: its session gets a whole timeout again (L3)."""
        session = self._sessions.get(node)
        if session is not None:
            self._sessions[node] = _Session(session.incarnation, now_ms + self._config.session_timeout_ms)

    def fence(self, node: str, incarnation: int) -> None:
        """The catalog has fenced the node, by whatever proposal. Its loss is not reported again (L3, L4)."""
        session = self._sessions.get(node)
        if session is not None and session.incarnation <= incarnation:
            session.incarnation = incarnation
            session.lost = True

    def forget(self, node: str) -> None:
        """The catalog has removed it."""
        self._sessions.pop(node, None)

    def wake(self, now_ms: int) -> list[SessionLost]:
        """Nodes whose sessions are over now, by name."""
        if self._woken_ms is None:
            return []
        paused = now_ms - self._woken_ms > self._config.session_timeout_ms // _PAUSE_PER_TIMEOUT
        self._woken_ms = max(self._woken_ms, now_ms)
        live = [(node, session) for node, session in sorted(self._sessions.items()) if not session.lost]
        if paused:
            self._graces += 1
            for _, session in live:
                session.expires_ms = now_ms + self._config.session_timeout_ms
        over = [(node, session) for node, session in live if session.expires_ms <= now_ms]
        for _, session in over:
            session.lost = True
        self._losses += len(over)
        return [SessionLost(node=node, incarnation=session.incarnation) for node, session in over]

    def wake_at_ms(self) -> int | None:
        """Often enough that a longer gap can only be a pause of this process (L2)."""
        if self._woken_ms is None:
            return None
        regular_ms = self._woken_ms + self._config.session_timeout_ms // _WAKES_PER_TIMEOUT
        return min([regular_ms, *(session.expires_ms for session in self._sessions.values() if not session.lost)])

    def is_live(self, node: str) -> bool:
        session = self._sessions.get(node)
        return session is not None and not session.lost

    def statistics(self) -> SessionStatistics:
        lost = sum(session.lost for session in self._sessions.values())
        return SessionStatistics(
            live=len(self._sessions) - lost,
            lost=lost,
            renewals=self._renewals,
            losses=self._losses,
            fenced_answers=self._fenced_answers,
            graces=self._graces,
        )


class SessionHolder:
    """A node's side of its session."""

    def __init__(self, *, node: str, incarnation: int, config: LivenessConfig, now_ms: int) -> None:
        self._node = node
        self._incarnation = incarnation
        self._config = config
        self._leader: str | None = None
        self._renew_at_ms = now_ms
        self._counter = 0
        self._unanswered: dict[int, int] = {}
        """When each renewal left that has not been answered, by counter, oldest first."""
        self._valid_until_ms: int | None = None
        self._fenced = False

    @property
    def incarnation(self) -> int:
        return self._incarnation

    @property
    def is_fenced(self) -> bool:
        """The session is lost; only `restart` with a higher incarnation helps."""
        return self._fenced

    def set_leader(self, leader: str | None, now_ms: int) -> None:
        """The metadata leader, as far as this node knows. A new one gets a renewal at once."""
        if leader != self._leader:
            self._leader = leader
            self._renew_at_ms = now_ms

    def wake(self, now_ms: int) -> list[tuple[str, RenewSession]]:
        """The renewal, if one is due, and its receiver."""
        if self._leader is None or self._fenced or now_ms < self._renew_at_ms:
            return []
        self._renew_at_ms = now_ms + self._config.heartbeat_ms
        self._counter += 1
        self._unanswered[self._counter] = now_ms
        if len(self._unanswered) > _UNANSWERED_MAX:
            del self._unanswered[next(iter(self._unanswered))]
        renewal = RenewSession(node=self._node, incarnation=self._incarnation, counter=self._counter)
        return [(self._leader, renewal)]

    def wake_at_ms(self) -> int | None:
        return None if self._leader is None or self._fenced else self._renew_at_ms

    def receive(self, answer: Answer) -> None:
        """Take an answer in, of any leader: one of a former leader counts only for its own time (L1)."""
        if answer.node != self._node:
            return
        if isinstance(answer, SessionRefused):
            self.fenced(answer.incarnation)
            return
        sent_ms = self._unanswered.get(answer.counter)
        if answer.incarnation != self._incarnation or sent_ms is None:
            return
        for counter in [counter for counter in self._unanswered if counter <= answer.counter]:
            del self._unanswered[counter]
        until_ms = sent_ms + believed_ms(
            timeout_ms=min(answer.timeout_ms, self._config.session_timeout_ms),
            confirmed_ago_ms=answer.confirmed_ago_ms,
            margin_percent=self._config.session_margin_percent,
        )
        if self._valid_until_ms is None or until_ms > self._valid_until_ms:
            self._valid_until_ms = until_ms

    def fenced(self, incarnation: int) -> None:
        """The catalog or the leader says that this incarnation is over. A message about an earlier one changes
        nothing."""
        if incarnation >= self._incarnation:
            self._fenced = True

    def restart(self, incarnation: int, now_ms: int) -> None:
        """Come back with a higher incarnation, after the catalog has registered it."""
        assert incarnation > self._incarnation, "L4"
        self._incarnation = incarnation
        self._fenced = False
        self._valid_until_ms = None
        self._unanswered.clear()
        self._renew_at_ms = now_ms

    def is_valid(self, now_ms: int) -> bool:
        """Whether this node may act, since no leader has ended its session (L1). Ask at the moment of acting."""
        return not self._fenced and self._valid_until_ms is not None and now_ms < self._valid_until_ms

    def valid_until_ms(self) -> int | None:
        """When it ends unless it is renewed; None while there is no session."""
        return None if self._fenced else self._valid_until_ms
