"""Heartbeats between a node and its peers: silence, round trips, and the throughput of links.

Nothing here does I/O. The caller posts what `wake` and `receive` return, and passes in what arrives. There is one
heartbeat per pair of nodes and interval, whatever the number of channels (R7).

What a caller must keep: call `wake` when `wake_at_ms` says so. `now_ms` and `now_us` are this node's steady clock,
which must go on while the machine is suspended. Ask `accepts` before using the report of a heartbeat, then pass it to
`receive`.

H1  No two nodes' clocks are ever compared: a round trip is my time between sending and the echo, less the time that the
    other side held it.
H2  A message that is not newer than all before it changes nothing: an older incarnation, a repeated or overtaken
    counter.
H4  Time in which this node did not run is nobody's silence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from tidelog.core.liveness.config import HEARTBEAT_MS_MIN, LivenessConfig
from tidelog.core.liveness.measures import Peak, RoundTrips
from tidelog.core.liveness.messages import (
    SILENCE_MS_MAX,
    SILENCE_STEP_MS,
    Echo,
    Hearing,
    HearingReport,
    Heartbeat,
)
from tidelog.errors import TooManyNames
from tidelog.units import US_PER_MS

_UNECHOED_MAX: Final = 16
_HELD_US_MAX: Final = 60_000_000
"""An older heartbeat is not echoed: over so long a hold, different clock rates would distort the round trip."""
_RTT_US_MAX: Final = 2**32 - 1


class _Peer:
    """What is known of one peer, and what it was told."""

    __slots__ = (
        "counter",
        "counter_heard",
        "heard_ms",
        "heard_us",
        "incarnation",
        "peak",
        "rtt",
        "sent_ms",
        "unechoed",
        "up",
        "wish_ms",
        "wish_of_peer_ms",
    )

    def __init__(self, *, config: LivenessConfig, now_ms: int) -> None:
        self.up = False
        self.wish_ms = config.heartbeat_ms
        self.wish_of_peer_ms: int | None = None
        self.sent_ms: int | None = None
        """When its last heartbeat was due; None means that one is due now."""
        self.counter = 0
        self.unechoed: dict[int, int] = {}
        """When each heartbeat left (us) that has not been echoed, by counter, oldest first."""
        self.incarnation: int | None = None
        self.counter_heard = 0
        # Before it is first heard, silence counts from when it became a peer.
        self.heard_ms = now_ms
        self.heard_us = 0
        self.rtt = RoundTrips()
        self.peak = Peak(bytes_min=config.transfer_bytes_min)

    @property
    def interval_ms(self) -> int:
        return max(HEARTBEAT_MS_MIN, min(self.wish_ms, self.wish_of_peer_ms or self.wish_ms))

    def is_newer(self, message: Heartbeat) -> bool:
        if self.incarnation is None or message.incarnation > self.incarnation:
            return True
        return message.incarnation == self.incarnation and message.counter > self.counter_heard


@dataclass(frozen=True, slots=True, kw_only=True)
class PairStatistics:
    """Counters since the start."""

    peers: int
    sent: int
    received: int
    stale: int
    """Heartbeats that were not newer than what had been heard (H2)."""
    strangers: int
    """Heartbeats from nodes that are not peers."""
    round_trips_ignored: int
    paused_ms: int
    """How long this node did not run, as far as it noticed (H4)."""


class PairHeartbeats:
    """One node's side of all its pairs."""

    def __init__(self, *, node: str, incarnation: int, config: LivenessConfig, now_ms: int) -> None:
        self._node = node
        self._incarnation = incarnation
        self._config = config
        self._now_ms = now_ms
        self._peers: dict[str, _Peer] = {}
        self._counter_used = 0
        """The highest counter used with any former peer."""
        self._sent = self._received = self._stale = self._strangers = 0
        self._round_trips_ignored = self._paused_ms = 0

    # --- who the peers are -----------------------------------------------------------------------

    def set_peers(self, peers: Iterable[str], now_ms: int) -> None:
        """Set the peers: all other nodes of the cluster. Those that stay keep their measurements. Nothing changes on an
        error."""
        wanted = sorted(set(peers) - {self._node})
        if len(wanted) >= self._config.nodes_max:
            raise TooManyNames(names_max=self._config.nodes_max)
        self._advance(now_ms)
        kept = self._peers
        self._counter_used = max([self._counter_used, *(peer.counter for peer in kept.values())])
        self._peers = {name: kept.get(name) or self._new_peer(now_ms) for name in wanted}

    def _new_peer(self, now_ms: int) -> _Peer:
        """A peer that returns may remember our counters: they go on, or it would take our heartbeats for old ones
        (H2)."""
        peer = _Peer(config=self._config, now_ms=now_ms)
        peer.counter = self._counter_used
        return peer

    def peers(self) -> list[str]:
        return list(self._peers)

    @property
    def peers_known(self) -> Collection[str]:
        """The peers, without a copy."""
        return self._peers.keys()

    def set_interval(self, peer: str, heartbeat_ms: int) -> None:
        """The smallest `heartbeat_ms` of the channels that the pair shares; the default is the config's."""
        assert heartbeat_ms >= HEARTBEAT_MS_MIN, "a channel's heartbeat_ms is checked where it is configured"
        self._peers[peer].wish_ms = min(heartbeat_ms, self._config.heartbeat_ms)

    def peer_up(self, peer: str, now_ms: int) -> None:
        """There is a link to the peer: send a heartbeat at once. Nothing happens for a node that is no peer."""
        self._advance(now_ms)
        if (known := self._peers.get(peer)) is not None:
            known.up = True
            known.sent_ms = None
            known.unechoed.clear()

    def peer_down(self, peer: str, now_ms: int) -> None:
        """The link is gone. The peer may still be alive: only silence counts."""
        self._advance(now_ms)
        if (known := self._peers.get(peer)) is not None:
            known.up = False

    def restart(self, incarnation: int, now_ms: int) -> None:
        """This node comes back after a fence, with a higher incarnation and without a new process."""
        assert incarnation > self._incarnation, "incarnations only rise"
        self._advance(now_ms)
        self._incarnation = incarnation
        self._counter_used = 0
        for peer in self._peers.values():
            peer.counter = 0
            peer.unechoed.clear()
            peer.sent_ms = None

    # --- messages and time -----------------------------------------------------------------------

    def wake(self, now_ms: int, now_us: int | None = None) -> list[tuple[str, Heartbeat]]:
        """The heartbeats that are due. `now_us` is the same clock, finer: round trips are as fine as it is."""
        self._advance(now_ms)
        now_us = now_ms * US_PER_MS if now_us is None else now_us
        due = [name for name, peer in self._peers.items() if self._due_ms(peer) <= now_ms]
        report = self.report(now_ms) if due else HearingReport()
        heartbeats = []
        for name in due:
            peer = self._peers[name]
            peer.sent_ms = now_ms
            if peer.up:
                heartbeats.append((name, self._heartbeat(peer, report, now_us)))
        return heartbeats

    def wake_at_ms(self) -> int | None:
        """Also while no link is up: a node that is not woken cannot tell silence from its own pause (H4)."""
        return min((self._due_ms(peer) for peer in self._peers.values()), default=None)

    def accepts(self, peer: str, message: Heartbeat) -> bool:
        """Whether `receive` would accept it: only then is its report new (H2)."""
        known = self._peers.get(peer)
        return known is not None and known.is_newer(message)

    def receive(
        self, peer: str, message: Heartbeat, now_ms: int, now_us: int | None = None
    ) -> list[tuple[str, Heartbeat]]:
        """Take a heartbeat in. It is answered at once only on first contact, so that both sides measure early."""
        self._advance(now_ms)
        now_us = now_ms * US_PER_MS if now_us is None else now_us
        known = self._peers.get(peer)
        if known is None:
            self._strangers += 1
            return []
        if not known.is_newer(message):
            self._stale += 1
            return []
        self._received += 1
        first = known.incarnation != message.incarnation
        if first:
            # Its echoes are of what it heard itself, so they count.
            known.incarnation = message.incarnation
            known.rtt = RoundTrips()
        known.counter_heard = message.counter
        known.heard_ms = now_ms
        known.heard_us = now_us
        known.wish_of_peer_ms = message.interval_ms
        if message.echo is not None and message.echo.incarnation == self._incarnation:
            self._take_echo(known, message.echo, now_us)
        if not first:
            return []
        known.sent_ms = now_ms
        return [(peer, self._heartbeat(known, self.report(now_ms), now_us))]

    # --- what is known ---------------------------------------------------------------------------

    def silence_ms(self, peer: str, now_ms: int) -> int:
        """How long it has not been heard while this node ran (H4); from when it became a peer if it never was."""
        return max(0, now_ms - self._peers[peer].heard_ms - self._pause_ms(now_ms))

    def incarnation(self, peer: str) -> int | None:
        return self._peers[peer].incarnation

    def interval_ms(self, peer: str) -> int:
        return self._peers[peer].interval_ms

    def rtt_median_us(self, peer: str) -> int | None:
        return self._peers[peer].rtt.median_us()

    def record_transfer(
        self, peer: str, byte_count: int, elapsed_us: int, now_ms: int, *, limited: bool = False
    ) -> None:
        """A bulk transfer ended. `limited` if our own budget held it back: it may then only raise the peak (LME2).

        Best is the time on the wire, without waits for the budget: then even a limited transfer shows the link.
        """
        if (known := self._peers.get(peer)) is not None:
            known.peak.record(byte_count, elapsed_us, now_ms, limited=limited)

    def peak_bytes_per_s(self, peer: str) -> int:
        return self._peers[peer].peak.bytes_per_s(self._now_ms)

    def report(self, now_ms: int) -> HearingReport:
        """How this node hears all its peers. The caller feeds it to its own proximity graph too."""
        awake_ms = now_ms - self._pause_ms(now_ms)
        return HearingReport(
            hearings=tuple(_hearing(name, peer, awake_ms, now_ms) for name, peer in self._peers.items())
        )

    def statistics(self) -> PairStatistics:
        return PairStatistics(
            peers=len(self._peers),
            sent=self._sent,
            received=self._received,
            stale=self._stale,
            strangers=self._strangers,
            round_trips_ignored=self._round_trips_ignored,
            paused_ms=self._paused_ms,
        )

    # --- leaves ----------------------------------------------------------------------------------

    def _due_ms(self, peer: _Peer) -> int:
        return self._now_ms if peer.sent_ms is None else peer.sent_ms + peer.interval_ms

    def _pause_ms(self, now_ms: int) -> int:
        """How long this node cannot have been running since the last call: calls are that frequent."""
        if not self._peers:
            return 0
        interval_ms = min(peer.interval_ms for peer in self._peers.values())
        elapsed_ms = now_ms - self._now_ms
        return elapsed_ms - interval_ms if elapsed_ms > 2 * interval_ms else 0

    def _advance(self, now_ms: int) -> None:
        if paused_ms := self._pause_ms(now_ms):
            self._paused_ms += paused_ms
            for peer in self._peers.values():
                peer.heard_ms += paused_ms
        self._now_ms = max(self._now_ms, now_ms)

    def _take_echo(self, peer: _Peer, echo: Echo, now_us: int) -> None:
        left_us = peer.unechoed.get(echo.counter)
        if left_us is None:
            return  # measured already, or too long ago
        if not peer.rtt.add(now_us - left_us - echo.held_us):
            self._round_trips_ignored += 1
        for counter in [counter for counter in peer.unechoed if counter <= echo.counter]:
            del peer.unechoed[counter]

    def _heartbeat(self, peer: _Peer, report: HearingReport, now_us: int) -> Heartbeat:
        self._sent += 1
        peer.counter += 1
        peer.unechoed[peer.counter] = now_us
        if len(peer.unechoed) > _UNECHOED_MAX:
            del peer.unechoed[next(iter(peer.unechoed))]
        echo = None
        held_us = max(0, now_us - peer.heard_us)
        if peer.incarnation is not None and held_us <= _HELD_US_MAX:
            echo = Echo(incarnation=peer.incarnation, counter=peer.counter_heard, held_us=held_us)
        return Heartbeat(
            incarnation=self._incarnation,
            counter=peer.counter,
            interval_ms=peer.wish_ms,
            echo=echo,
            report=report,
        )


def _hearing(name: str, peer: _Peer, awake_ms: int, now_ms: int) -> Hearing:
    silence_ms = min(max(0, awake_ms - peer.heard_ms), SILENCE_MS_MAX)
    return Hearing(
        node=name,
        silence_ms=silence_ms - silence_ms % SILENCE_STEP_MS,
        interval_ms=peer.interval_ms,
        rtt_us=min(peer.rtt.median_us() or 0, _RTT_US_MAX),
        peak_bytes_per_s=peer.peak.shown_bytes_per_s(now_ms),
    )
