"""The one connection of a process to a NATS server: reconnected for ever, never awaited by its users.

    nats = NatsConnection(options, on_up=..., on_down=..., log=log)
    await nats.start()
    nats.subscribe("ships.position", on_messages)
    nats.publish("ships.ack", [b"..."])

Built on nats-py, imported when the first connection is made: a node without NATS servers runs without it. A nats-py
client is used for one connection to one server, and reconnecting is done here: nats-py's own reconnect keeps messages
and sends them later, which for replication is worse than losing them, and it does not report when subscriptions are
active again. Publishing goes through a queue, because nats-py's `publish` is a coroutine.

What a caller must keep: all calls from the event loop that `start` ran in; read `inbox` in `on_up`, since it changes
each time; `on_messages` must store messages somewhere with a limit. NATS sends each message at most once: `True` from
`publish` means that it was queued, not that a subscriber got it.

NX1  `publish`, `subscribe` and `unsubscribe` return at once and take effect in the order in which they were called.
NX2  At most `PENDING_BYTES_MAX` wait to be sent, on one connection: when that ends they are dropped.
NX3  `on_up` comes after the server has confirmed every subscription made before it. Between an `on_down` and the next
     `on_up` nothing is delivered and `publish` returns False.
NX4  Messages of one subscription come in the order of the server, those that arrived together in one call.
NX5  A server that is unreachable, refuses the connection or reports an error is logged once per reason, counted, and
     tried again; it never ends a task of this process.
NX6  Where TLS is asked for (a `tls://` server or a TLS file) no password is sent and nothing goes on without it.
NX7  Waits between tries double, and are reset only after a connection that lasted: a server that accepts connections
     and fails a moment later is not dialed without pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import secrets
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from tidelog.errors import BadSubject, InvalidConfig
from tidelog.extras import optional
from tidelog.pki.files import read_file
from tidelog.units import KIB, MIB

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

PENDING_BYTES_MAX: Final = 64 * MIB
"""The most bytes that may wait to be sent; if the server is slower than that, `publish` returns False."""
MAX_PAYLOAD: Final = 1 * MIB
"""The payload limit of a server with its defaults; used until one has sent its own."""
CONNECT_S: Final = 5
BACKOFF_S: Final = (0.05, 1.0)
"""The first and the longest wait between two tries."""
LASTED_S: Final = 1.0
"""A connection that lasted less counts as a failed try: the waits keep growing (NX7)."""
PING_S: Final = 2
"""A server that does not answer three of these in a row is lost."""
CLOSE_S: Final = 2.0
_LOOK_S: Final = 0.25
"""nats-py does not always report that its connection ended (an error while it closes); so it is checked."""
_WRITE_BYTES: Final = 1 * MIB
"""Bytes passed to nats-py at a time. Beyond it the sender waits for the socket."""
_SATURATED_S: Final = 0.002
_COMPLAINTS_MAX: Final = 64
_SECRET_BYTES_MAX: Final = 4 * KIB
_NO_RESPONDERS: Final = "503"
_SUBJECT: Final = re.compile(r"[^\s\x00-\x1f\x7f.]+(\.[^\s\x00-\x1f\x7f.]+)*")

OnMessages: TypeAlias = Callable[[list["NatsMessage"]], None]
_Step: TypeAlias = tuple[str, bytes, str] | int
"""To be sent in order: a message (subject, payload, reply), or the number of a new or ended subscription."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsOptions:
    """The NATS servers and how to reach them. Per process; nodes of a cluster may use different servers of one NATS
    cluster."""

    servers: tuple[str, ...]
    """Such as nats://host:4222 or tls://host:4222; tried one after the other."""
    name: str = "tidelog"
    """Shown in the server's monitoring."""
    user: str | None = None
    password_file: Path | None = None
    """Read at every connection, so a changed password needs no restart."""
    credentials: Path | None = None
    """A .creds file with the JWT and the seed of a user, instead of user and password."""
    tls_ca: Path | None = None
    """Authorities that the server's certificate is checked against; those of the system by default."""
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def __post_init__(self) -> None:
        problems = [problem for server in self.servers if (problem := _server_problem(server))]
        if not self.servers:
            problems.append("no server is named; give at least one, such as nats://127.0.0.1:4222")
        if (self.user is None) != (self.password_file is None):
            problems.append("user and password file go together; give both or neither")
        if self.user is not None and self.credentials is not None:
            problems.append("there are a user and a credentials file; give the one that the server knows")
        if (self.tls_cert is None) != (self.tls_key is None):
            problems.append("tls certificate and key go together; give both or neither")
        if problems:
            raise InvalidConfig(section="nats", problems=problems)

    def wants_tls(self, server: str) -> bool:
        return server.startswith("tls://") or self.tls_ca is not None or self.tls_cert is not None


class NatsMessage(NamedTuple):
    """One message as it arrived."""

    subject: str
    reply: str
    """Empty if no answer is expected."""
    no_responders: bool
    """Not from a publisher: the server reports that the request's subject has no subscriber."""
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsStatistics:
    connections: int
    """Made since the start."""
    failures: int
    """Tries that failed, connections that were lost, errors of the server."""
    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int
    dropped: int
    """Refused by `publish`, or queued on a connection that ended."""
    pending_bytes: int
    subscriptions: int


@dataclass(slots=True)
class _Wanted:
    """A subscription of a caller, over all connections."""

    subject: str
    queue: str
    on_messages: OnMessages
    arrived: list[NatsMessage]
    here: Subscription | None = None
    """Its number on the present connection."""


class NatsConnection:
    def __init__(
        self,
        options: NatsOptions,
        *,
        on_up: Callable[[], None],
        on_down: Callable[[str], None],
        log: Callable[[str], None],
        pending_bytes_max: int = PENDING_BYTES_MAX,
    ) -> None:
        """Raises `MissingExtra` where nats-py is not installed."""
        self._nats = _nats_py(needs_nkeys=options.credentials is not None)
        self._options = options
        self._on_up = on_up
        self._on_down = on_down
        self._log = log
        self.is_up = False
        self.max_payload = MAX_PAYLOAD
        self.inbox = _new_inbox()
        self._pending_bytes_max = pending_bytes_max
        self._pending_bytes = 0
        self._steps: deque[_Step] = deque()
        self._wanted: dict[int, _Wanted] = {}
        self._leaving: dict[int, Subscription] = {}
        self._last_number = 0
        self._has_steps = asyncio.Event()
        self._has_sent = asyncio.Event()
        self._has_ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._end_error: Exception | None = None
        self._complaints: set[str] = set()
        self._connections = self._failures = self._dropped = 0
        self._messages_in = self._bytes_in = self._messages_out = self._bytes_out = 0

    async def start(self) -> None:
        """Connect in the background, for ever; an unreachable server is no error."""
        assert self._task is None, "a connection is started once"
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Send what waits, within a moment, and end. Nothing is called afterwards."""
        if self.is_up and self._steps:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._has_sent.wait()
        self._is_closing = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            # The task belongs to this object and was cancelled: its errors no longer matter.
            await asyncio.wait({task}, timeout=2 * CLOSE_S)
        self.is_up = False
        self._wanted.clear()

    def publish(self, subject: str, buffers: Sequence[bytes | bytearray | memoryview], *, reply: str = "") -> bool:
        """Queue a message; False: not up, too much is waiting or too large for the server, and nothing was kept. Raises
        `BadSubject` for a subject that NATS would not take: check subjects from outside first."""
        _require_subject(subject)
        if reply:
            _require_subject(reply)
        size = sum(map(len, buffers))
        if not self.is_up or self._pending_bytes + size > self._pending_bytes_max:
            self._dropped += 1
            return False
        if size > self.max_payload:
            self._dropped += 1
            self._complain(f"a message of {size} bytes is larger than the server takes, {self.max_payload}")
            return False
        first = buffers[0] if len(buffers) == 1 else None
        payload = first if isinstance(first, bytes) else b"".join(buffers)
        self._pending_bytes += size
        self._steps.append((subject, payload, reply))
        self._has_steps.set()
        return True

    def subscribe(self, subject: str, on_messages: OnMessages, *, queue: str = "") -> int:
        """Subscribe, over all connections; returns the number to unsubscribe with. Wildcards are allowed."""
        for text in (subject, queue) if queue else (subject,):
            _require_subject(text)
        self._last_number += 1
        self._wanted[self._last_number] = _Wanted(subject, queue, on_messages, [])
        self._add_step(self._last_number)
        return self._last_number

    def unsubscribe(self, number: int) -> None:
        """No message of it is delivered any more, not even one that is here already."""
        wanted = self._wanted.pop(number)
        if wanted.here is not None:
            self._leaving[number] = wanted.here
            self._add_step(number)

    def statistics(self) -> NatsStatistics:
        return NatsStatistics(
            connections=self._connections,
            failures=self._failures,
            messages_in=self._messages_in,
            bytes_in=self._bytes_in,
            messages_out=self._messages_out,
            bytes_out=self._bytes_out,
            dropped=self._dropped,
            pending_bytes=self._pending_bytes,
            subscriptions=len(self._wanted),
        )

    # --- connecting, for ever -----------------------------------------------------------------------------

    async def _run(self) -> None:
        servers = list(self._options.servers)
        rng = random.Random()  # Start at a random server and wait: nodes should not all do the same.
        rng.shuffle(servers)
        wait_s = BACKOFF_S[0]
        while not self._is_closing:
            servers.append(servers.pop(0))
            wait_s = wait_after(wait_s, stood_s=await self._live(servers[-1]))
            await asyncio.sleep(wait_s * rng.uniform(0.5, 1.0))

    async def _live(self, server: str) -> float:
        """One connection from start to end; returns how long it lasted, 0 if it never came up."""
        client = self._nats.Client()
        self._has_ended = asyncio.Event()
        self._end_error = None
        up_since_s: float | None = None
        problem = "we were told to close"
        try:
            problem = await self._problem_of_making(client, server)
            if not problem and not self._is_closing:
                up_since_s = time.monotonic()
                self._stand_up(client)
                problem = await self._serve(client)
        finally:
            stood_s = 0.0 if up_since_s is None else time.monotonic() - up_since_s
            self._fall(problem, was_up=up_since_s is not None, server=server)
            await self._discard(client)
        return stood_s

    async def _problem_of_making(self, client: Client, server: str) -> str:
        """Connected, and all subscriptions confirmed by the server (NX3); or the reason why not."""
        self._leaving.clear()
        try:
            await self._connect(client, server)
            # Again for those that came while we waited.
            while missing := [(number, one) for number, one in self._wanted.items() if one.here is None]:
                for number, wanted in missing:
                    await self._subscribe(client, number, wanted)
                await client.flush(timeout=CONNECT_S)
        except self._nats.errors.NoServersError as error:
            return _words(self._end_error or error)
        except Exception as error:
            # Any exception that a strange server causes in nats-py, its assertions too: it is tried again (NX5).
            return _words(error)
        return ""

    async def _serve(self, client: Client) -> str:
        """Until it ends; returns why."""
        sending = asyncio.get_running_loop().create_task(self._send_steps(client))
        try:
            while client.is_connected and not sending.done() and not self._is_closing:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._has_ended.wait()
        finally:
            while not sending.done():  # nats-py swallows cancellation in places.
                sending.cancel()
                await asyncio.wait({sending}, timeout=_LOOK_S)
        error: BaseException | None = client.last_error or self._end_error
        if error is None and not sending.cancelled():
            error = sending.exception()
        return "the server ended the connection" if error is None else _words(error)

    async def _connect(self, client: Client, server: str) -> None:
        options = self._options
        wants_tls = options.wants_tls(server)
        context = self._tls_context() if wants_tls else None
        password = None
        if options.password_file is not None:
            password = read_file(options.password_file, bytes_max=_SECRET_BYTES_MAX).decode().strip()

        def say_password() -> str:
            _require_tls(client, wants_tls)
            assert password is not None
            return password

        async with asyncio.timeout(2 * CONNECT_S):
            await client.connect(
                servers=[server],
                name=options.name,
                error_cb=self._note_error,
                closed_cb=self._note_end,
                disconnected_cb=self._note_end,
                allow_reconnect=False,
                # One try, twice; zero would mean for ever.
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=CONNECT_S,
                ping_interval=PING_S,
                tls=context,
                user=options.user,
                password=None if password is None else say_password,
                user_credentials=options.credentials,
                # Nothing is kept for a connection that is gone, and the sender waits for the socket itself.
                pending_size=0,
                skip_subject_validation=True,
            )
        _require_tls(client, wants_tls)

    def _stand_up(self, client: Client) -> None:
        """Notify callers, then deliver what came with the subscriptions before the server had confirmed them all."""
        self._steps.extend(self._leaving)  # These went while we waited.
        self._has_steps.set()
        self._has_sent.clear()
        self._connections += 1
        self.max_payload = client.max_payload
        self.inbox = _new_inbox()
        self.is_up = True
        self._complaints.clear()
        url = client.connected_url
        self._log(f"nats is up server={url.netloc if url else '?'} max_payload={self.max_payload}")
        self._on_up()
        for number, wanted in self._wanted.items():
            if wanted.arrived:
                asyncio.get_running_loop().call_soon(self._deliver, number)

    def _fall(self, problem: str, *, was_up: bool, server: str) -> None:
        self.is_up = False
        self._dropped += sum(not isinstance(step, int) for step in self._steps)
        self._steps.clear()
        self._pending_bytes = 0
        self._leaving.clear()
        for wanted in self._wanted.values():
            wanted.here = None
            wanted.arrived.clear()
        if self._is_closing:
            return
        self._complain(f"no connection to {server}: {problem}")
        if was_up:
            self._on_down(problem)

    async def _discard(self, client: Client) -> None:
        """Close it, whatever state it is in. Errors at the end do not matter."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_S):
                await client.close()

    def _tls_context(self) -> ssl.SSLContext:
        options = self._options
        context = ssl.create_default_context(cafile=None if options.tls_ca is None else str(options.tls_ca))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if options.tls_cert is not None:
            context.load_cert_chain(options.tls_cert, options.tls_key)
        return context

    # --- sending ------------------------------------------------------------------------------------------

    def _add_step(self, number: int) -> None:
        if self.is_up:
            self._steps.append(number)
            self._has_steps.set()

    async def _send_steps(self, client: Client) -> None:
        """Carry out everything that callers queued, in order (NX1)."""
        while client.is_connected:
            while self._steps:
                step = self._steps.popleft()
                if isinstance(step, int):
                    await self._change_subscription(client, step)
                    continue
                subject, payload, reply = step
                self._pending_bytes -= len(payload)
                self._messages_out += 1
                self._bytes_out += len(payload)
                await client.publish(subject, payload, reply)
                # nats-py has no event for this.
                while client.pending_data_size > _WRITE_BYTES and client.is_connected:  # noqa: ASYNC110
                    await asyncio.sleep(_SATURATED_S)
            self._has_sent.set()
            self._has_steps.clear()
            await self._has_steps.wait()
            self._has_sent.clear()

    async def _change_subscription(self, client: Client, number: int) -> None:
        wanted = self._wanted.get(number)
        if wanted is not None:
            await self._subscribe(client, number, wanted)
        elif (leaving := self._leaving.pop(number, None)) is not None:
            await leaving.unsubscribe()

    async def _subscribe(self, client: Client, number: int, wanted: _Wanted) -> None:
        if wanted.here is not None:
            return  # It was made while the connection was, and the step is behind.

        async def take(message: Msg) -> None:
            self._take(number, message)

        wanted.here = await client.subscribe(wanted.subject, queue=wanted.queue, cb=take)
        if number not in self._wanted:
            await wanted.here.unsubscribe()

    # --- receiving ----------------------------------------------------------------------------------------

    def _take(self, number: int, message: Msg) -> None:
        """nats-py hands out what one read brought in one turn of the loop; the call at its end takes it all (NX4)."""
        wanted = self._wanted.get(number)
        if wanted is None:
            return
        payload = message.data
        self._messages_in += 1
        self._bytes_in += len(payload)
        nobody = not payload and message.headers is not None and message.headers.get("Status") == _NO_RESPONDERS
        if not wanted.arrived:
            asyncio.get_running_loop().call_soon(self._deliver, number)
        wanted.arrived.append(NatsMessage(message.subject, message.reply, nobody, payload))

    def _deliver(self, number: int) -> None:
        wanted = self._wanted.get(number)
        if wanted is None or not wanted.arrived or not self.is_up:
            return
        arrived, wanted.arrived = wanted.arrived, []
        wanted.on_messages(arrived)

    # --- what goes wrong ------------------------------------------------------------------------------------

    async def _note_error(self, error: Exception) -> None:
        # The reason that ends a connection, or a try to make one, is reported with the server's name when it has ended.
        if isinstance(error, OSError | TimeoutError | self._nats.errors.UnexpectedEOF) or not self.is_up:
            self._end_error = error
        else:
            self._complain(_words(error))

    async def _note_end(self) -> None:
        self._has_ended.set()

    def _complain(self, problem: str) -> None:
        """One line while the reason is the same; it is reset when a connection comes up (NX5)."""
        self._failures += 1
        if problem not in self._complaints and len(self._complaints) < _COMPLAINTS_MAX:
            self._complaints.add(problem)
            self._log(f"nats problem={problem!r}; it is tried again")


def wait_after(wait_s: float, *, stood_s: float) -> float:
    """The longest wait before the next try, after a connection that lasted this long (NX7)."""
    return BACKOFF_S[0] if stood_s >= LASTED_S else min(2 * wait_s, BACKOFF_S[1])


def _nats_py(*, needs_nkeys: bool) -> Any:
    with optional("a connection to a NATS server"):
        import nats.aio.client
        import nats.errors

        import nats

        if needs_nkeys:
            import nkeys  # noqa: F401

    class Parts:
        Client = nats.aio.client.Client
        errors = nats.errors

    return Parts


def _new_inbox() -> str:
    return f"_INBOX.{secrets.token_hex(11)}"


def _require_subject(subject: str) -> None:
    """No blank and no line end: they would be commands to the server."""
    if _SUBJECT.fullmatch(subject) is None:
        raise BadSubject(subject=subject[:255], problem="is none that a NATS server takes: a blank or an empty part")


def _require_tls(client: Client, wants_tls: bool) -> None:
    """NX6. nats-py encrypts where the server asks for it and continues in the clear where it does not, and has no
    public way to tell which; so the server's INFO is checked."""
    if wants_tls and not client._server_info.get("tls_required"):
        raise InvalidConfig(section="nats", problems=["TLS is asked for and the server offers none; nothing was said"])


def _server_problem(server: str) -> str | None:
    try:
        parts = urlsplit(server)
        has_host = bool(parts.hostname) and parts.port is not None
    except ValueError:
        has_host = False
    if not has_host or parts.scheme not in ("nats", "tls") or parts.path not in ("", "/"):
        return f"{server[:80]!a} is no address of a NATS server; write nats://host:port or tls://host:port"
    if parts.username is not None or parts.password is not None:
        return "a password in a server's address ends up in logs; use user and password file"
    return None


def _words(error: BaseException | None) -> str:
    """An error in one line, never empty."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:300]
