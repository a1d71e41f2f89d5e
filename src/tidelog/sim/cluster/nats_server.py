"""A simulated NATS server, and the connections of simulated nodes to it.

As a real one: what is sent over a connection arrives in order or is lost with the connection; a message goes to all
that listen on its subject, and the sender is told where nobody does; a payload has a largest size. The server can
die and come back without a memory, freeze and go on where it was, and lose single connections. A node that is cut off
from the server alone notices late; the server notices later still, and until then keeps the dead connection's
subscriptions, so that messages vanish without a word.

Randomness is this module's own, so worlds without NATS live as they did.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tidelog.cluster.node.core import NodeCore
from tidelog.sim.metadata.scene import MetadataWeather
from tidelog.sim.network import Scheduler
from tidelog.units import KIB, MIB

NAMESPACE: Final = "sim"
PENDING_MAX: Final = 10_000
_NOTICED_MS: Final = 6_000
"""A connection that is cut is given up by its node within so long, by the server within twice that."""


@dataclass(frozen=True, slots=True)
class NatsArrival:
    """What a connection brings to its node."""

    subject: str
    reply: str
    no_responders: bool
    payload: bytes


@dataclass(slots=True)
class _Session:
    """One connection, as the server sees it."""

    client: SimNatsClient
    inbox: str
    subjects: set[str]
    is_open: bool = True
    arrives_up_ms: int = 0
    arrives_down_ms: int = 0


class NatsNode(Protocol):
    """What the server uses of a node that is connected."""

    name: str
    process: int
    paused: bool
    nats: SimNatsClient | None

    @property
    def core(self) -> NodeCore | None: ...

    def follow_nats(self) -> None:
        """The connection came or went."""

    def deliver(self, sender: str, message: Any) -> bool: ...


class NatsWorld(Protocol):
    """What the server and its faults use of the world."""

    nats: SimNatsServer | None

    @property
    def scheduler(self) -> Scheduler: ...

    @property
    def counters(self) -> Counter[str]: ...

    @property
    def weather(self) -> MetadataWeather: ...


class SimNatsClient:
    """The way of one process of a node to the server; connects for ever."""

    def __init__(self, server: SimNatsServer, node: NatsNode) -> None:
        self._server = server
        self.node = node
        self.process = node.process
        self.wanted: set[str] = set()
        """Subscriptions, over all connections."""
        self.session: _Session | None = None

    @property
    def is_alive(self) -> bool:
        return self.node.process == self.process and self.node.core is not None

    @property
    def inbox(self) -> str:
        """Empty while there is no connection, as the node knows."""
        return "" if self.session is None else self.session.inbox

    def subscribe(self, subject: str) -> None:
        self.wanted.add(subject)
        self._server.sent(self, lambda session: session.subjects.add(subject))

    def unsubscribe(self, subject: str) -> None:
        self.wanted.discard(subject)
        self._server.sent(self, lambda session: session.subjects.discard(subject))

    def publish(self, subject: str, payload: bytes, reply: str) -> bool:
        assert len(payload) <= self._server.max_payload, "a payload that no server takes"
        if self.session is None:
            return False
        self._server.sent(self, lambda session: self._server.route(session, subject, payload, reply))
        return True


class SimNatsServer:
    def __init__(self, world: NatsWorld, seed: int) -> None:
        self._world = world
        self.rng = random.Random(f"{seed}/nats")
        self.max_payload = self.rng.choice((4 * KIB, 8 * KIB, 1 * MIB))
        self.is_up = True
        self.is_frozen = False
        self.cut: set[str] = set()
        """Nodes between which and the server nothing passes."""
        self._waiting: list[Callable[[], None]] = []
        """What came while the server was frozen."""
        self._sessions: list[_Session] = []
        self._inboxes = 0

    # --- connections -----------------------------------------------------------------------------------------

    def attach(self, node: NatsNode) -> SimNatsClient:
        """For a process that starts."""
        client = SimNatsClient(self, node)
        self._dial(client, self.rng.randrange(1, 200))
        return client

    def _dial(self, client: SimNatsClient, delay_ms: int) -> None:
        def dial() -> bool:
            if not client.is_alive or client.session is not None:
                return False
            if not self.is_up or self.is_frozen or client.node.name in self.cut or client.node.paused:
                self._dial(client, self.rng.randrange(50, 1_000))
                return False
            self._inboxes += 1
            session = _Session(client, f"_INBOX.{self._inboxes}", set(client.wanted))
            client.session = session
            self._sessions.append(session)
            client.node.follow_nats()
            return True

        self._world.scheduler.after(delay_ms, dial)

    def detach(self, client: SimNatsClient) -> None:
        """The process is gone; its machine may be too, and then the server learns of it late."""
        session, client.session = client.session, None
        if session is not None:
            self._forget_later(session, self.rng.choice((1, 1, 2 * _NOTICED_MS)))

    def drop(self, client: SimNatsClient) -> None:
        """A connection breaks, and both ends know at once or nearly so."""
        session = client.session
        if session is None:
            return
        session.is_open = False
        self._forget_later(session, self.rng.randrange(1, 50))
        self._notice_later(client, session, self.rng.randrange(1, 50))

    def _forget_later(self, session: _Session, delay_ms: int) -> None:
        def forget() -> bool:
            session.is_open = False
            if session in self._sessions:
                self._sessions.remove(session)
                return True
            return False

        self._world.scheduler.after(delay_ms, forget)

    def _notice_later(self, client: SimNatsClient, session: _Session, delay_ms: int) -> None:
        def notice() -> bool:
            if client.session is not session:
                return False
            client.session = None
            if not client.is_alive:
                return False
            client.node.follow_nats()
            self._dial(client, self.rng.randrange(25, 500))
            return True

        self._world.scheduler.after(delay_ms, notice)

    # --- messages ----------------------------------------------------------------------------------------------

    def sent(self, client: SimNatsClient, act: Callable[[_Session], Any]) -> None:
        """From a node to the server: in order, or lost."""
        session, scheduler, weather = client.session, self._world.scheduler, self._world.weather
        if session is None:
            return
        if weather.loss and self.rng.random() < weather.loss / 20:
            self.drop(client)
            return
        session.arrives_up_ms = max(scheduler.now_ms + self._delay_ms(), session.arrives_up_ms)

        def arrive() -> bool:
            if not session.is_open or not self.is_up or client.node.name in self.cut:
                return False
            if self.is_frozen:
                if len(self._waiting) < PENDING_MAX:
                    self._waiting.append(lambda: act(session))
                return False
            act(session)
            return True

        scheduler.at(session.arrives_up_ms, arrive)

    def route(self, source: _Session, subject: str, payload: bytes, reply: str) -> None:
        heard = False
        for session in self._sessions:
            if subject in session.subjects or (f"{session.inbox}.>" in session.subjects and _is_in(session, subject)):
                heard = True
                self._bring(session, NatsArrival(subject, reply, False, payload))
        if not heard and reply:
            self._world.counters["nats_unheard"] += 1
            self._bring(source, NatsArrival(reply, "", True, b""))

    def _bring(self, session: _Session, arrival: NatsArrival) -> None:
        """From the server to a node: in order, or lost."""
        scheduler, client = self._world.scheduler, session.client
        session.arrives_down_ms = max(scheduler.now_ms + self._delay_ms(), session.arrives_down_ms)

        def arrive() -> bool:
            if client.session is not session or not session.is_open or client.node.name in self.cut:
                return False
            return client.is_alive and client.node.deliver("", arrival)

        scheduler.at(session.arrives_down_ms, arrive)

    def _delay_ms(self) -> int:
        weather = self._world.weather
        delay_ms = weather.delay_ms + int(self.rng.random() * weather.jitter_ms)
        if weather.spike and self.rng.random() < weather.spike / 10:
            delay_ms += int(self.rng.random() * weather.spike_ms)
        return delay_ms

    # --- what happens to it --------------------------------------------------------------------------------------

    def kill(self) -> None:
        """It forgets everything; its connections break."""
        self.is_up = self.is_frozen = False
        self._waiting.clear()
        for session in list(self._sessions):
            self.drop(session.client)
            session.is_open = False
        self._sessions.clear()

    def start(self) -> None:
        self.is_up = True

    def freeze(self) -> None:
        self.is_frozen = self.is_up

    def thaw(self) -> None:
        """It goes on with what came meanwhile."""
        self.is_frozen = False
        waiting, self._waiting = self._waiting, []
        for act in waiting:
            act()

    def cut_off(self, node: NatsNode) -> None:
        """Nothing passes between this node and the server, and nobody is told."""
        self.cut.add(node.name)
        client = node.nats
        if client is not None and client.session is not None:
            self._notice_later(client, client.session, self.rng.randrange(500, _NOTICED_MS))
            self._forget_later(client.session, self.rng.randrange(500, 2 * _NOTICED_MS))

    def heal(self) -> None:
        self.cut.clear()
        self.start()
        self.thaw()


def _is_in(session: _Session, subject: str) -> bool:
    return subject.startswith(f"{session.inbox}.")


# --- faults ------------------------------------------------------------------------------------------------


def _server(world: NatsWorld) -> SimNatsServer:
    assert world.nats is not None, "a world without NATS"
    return world.nats


def restart(world: NatsWorld, _: NatsNode) -> None:
    server = _server(world)
    server.kill()
    world.counters["nats_restart"] += 1
    world.scheduler.after(server.rng.choice((5, 300, 2_000, 6_000)), server.start)


def freeze(world: NatsWorld, _: NatsNode) -> None:
    server = _server(world)
    server.freeze()
    world.counters["nats_freeze"] += 1
    world.scheduler.after(server.rng.choice((50, 1_000, 4_000)), server.thaw)


def cut_off(world: NatsWorld, node: NatsNode) -> None:
    server = _server(world)
    server.cut_off(node)
    world.counters["nats_cut"] += 1
    world.scheduler.after(server.rng.choice((100, 2_000, 8_000)), lambda: server.cut.discard(node.name))


def drop(world: NatsWorld, node: NatsNode) -> None:
    if node.nats is not None:
        world.counters["nats_drop"] += 1
        _server(world).drop(node.nats)


NATS_FAULTS: Final[dict[str, tuple[int, Callable[[Any, Any], None]]]] = {
    "nats_restart": (25, restart),
    "nats_freeze": (15, freeze),
    "nats_cut_off": (25, cut_off),
    "nats_drop": (15, drop),
}
"""Name to weight and what it does; beside all others, in worlds whose replication goes over NATS."""
NATS_SOMETIMES: Final = (
    "nats_cut",
    "nats_drop",
    "nats_freeze",
    "nats_fallback",
    "nats_offset_asked",
    "nats_parts",
    "nats_restart",
    "nats_sent",
    "nats_unheard",
)
"""What must have happened at least once in a run over many seeds."""
