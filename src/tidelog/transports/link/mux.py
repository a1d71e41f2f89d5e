"""The core of a link: many conversations over one stream of bytes. Decides; does no I/O.

A shell receives into `room()` and passes the count to `received`, which answers with events; it writes what
`next_write` gives, all of it, before it asks again; it calls `wake` now and then, which says when the link is dead.

The order of sending: control frames, then small ones in the order of the calls, and with each write at most one chunk
of a large body. So a heartbeat waits for one chunk at most, and a flood of small messages does not stop a large one.

What a caller must keep: after an error raised by `received` close the connection; views of large bodies stay
unchanged until they are sent.

LM1  Small messages and requests arrive in the order of the calls; large ones may be overtaken by all others.
LM2  Every call ends once: answered, failed, cancelled here, or with the link.
LM3  Unsent bytes are bounded: own messages and calls are refused over `queue_bytes_max` (small) and
     `bulk_queue_bytes_max` (large); nothing is read from a peer that makes more answers than it reads.
LM4  A peer cannot make this end hold more than `requests_max` requests and the bytes that `BulkReceiver` allows.
LM5  Every frame of a peer is accepted, or refused with `BadFrame`; nothing is guessed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from tidelog.errors import BadFrame, BodyTooLarge, LinkBusy, LinkClosed, LogError
from tidelog.transports.link.bulk import BulkMeter, BulkReceiver, BulkSender, OutgoingBody
from tidelog.transports.link.events import (
    Answered,
    Arrived,
    Asked,
    Cancelled,
    Draining,
    Event,
    Failed,
    HelloArrived,
    LinkOptions,
    LinkRefused,
    Opened,
)
from tidelog.transports.link.frames import (
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    CREDIT,
    HEAD,
    HEAD_BYTES,
    KIND_MAX,
    LARGE,
    SMALL_BYTES_MAX,
    Buffers,
    Frame,
    FrameReader,
    FrameType,
    frame,
    pieces_of,
)
from tidelog.transports.link.hello import LinkHello, PeerLimits, decode_hello, decode_refusal, encode_refusal
from tidelog.transports.link.memory import BodyMemory
from tidelog.units import KIB, MIB

_WRITE_BYTES: Final = 64 * KIB
"""Small frames that are joined into one write."""
_SLACK_BYTES: Final = MIB
_CHUNK_SLOW_US: Final = 20_000
_CHUNK_FAST_US: Final = 5_000
_MESSAGE: Final = int(FrameType.MESSAGE)


class LinkMux:
    """One end of one link."""

    def __init__(
        self, *, options: LinkOptions, is_dialler: bool, now_us: int, memory: BodyMemory | None = None
    ) -> None:
        self._options = options
        self._is_dialler = is_dialler
        taken = options.taken
        self._incoming = BulkReceiver(
            memory=memory or BodyMemory(),
            bulk_bytes_max=options.bulk_bytes_max,
            body_bytes_max=taken.body_bytes_max,
            transfers_max=taken.transfers_max,
            initial_credit=taken.initial_credit,
        )
        self._reader = FrameReader(self._incoming.place)
        self.room = self._reader.room
        self._theirs: PeerLimits | None = None
        """Known once the peer was accepted."""
        self._outgoing = BulkSender(transfers_max=1, initial_credit=1)
        self._control: list[bytes] = []
        self._small: deque[bytes] = deque()
        self._waiting_bytes = 0
        """Bytes of control and small frames."""
        self._queue_bytes_max = options.queue_bytes_max
        self._answers_bytes_max = taken.requests_max * (HEAD_BYTES + SMALL_BYTES_MAX) + _SLACK_BYTES
        self._is_open = False
        self._has_hello = False
        self._calls: set[int] = set()
        self._next_call = 1
        self._running: dict[int, int] = {}
        """Requests of the peer that are not answered, and the bytes held for each."""
        self._last_requests = [0, 0]
        """Ids of small and of large ones."""
        self._chunk_bytes = CHUNK_BYTES_MAX
        self._write_began_us: int | None = None
        self._write_has_chunk = False
        self._wrote_us = now_us
        self._heard_us = now_us
        self._ping_us: int | None = None
        # The first ping is sent at once: the round trip decides how much may be in flight.
        self._pinged_us = now_us - options.ping_interval_ms * 1000
        self._is_draining = False
        self._done_sent = False
        self._done_received = False
        self.rtt_us: int | None = None
        self._rtt_us_min: int | None = None
        self.messages_received = 0
        self.messages_sent = 0
        self.meter = BulkMeter()
        self._takers: dict[int, Callable[[Frame, list[Event], int], None]] = {
            FrameType.HELLO: self._take_hello,
            FrameType.READY: self._take_ready,
            FrameType.REFUSED: self._take_refused,
            FrameType.MESSAGE: self._take_body,
            FrameType.REQUEST: self._take_body,
            FrameType.ANSWER: self._take_body,
            FrameType.FAILURE: self._take_failure,
            FrameType.CANCEL: self._take_cancel,
            FrameType.DATA: self._take_data,
            FrameType.CREDIT: self._take_credit,
            FrameType.ABORT: self._take_abort,
            FrameType.PING: self._take_ping,
            FrameType.PONG: self._take_pong,
            FrameType.DRAIN: self._take_drain,
            FrameType.DONE: self._take_done,
        }

    # --- facts -------------------------------------------------------------------------------------

    @property
    def has_output(self) -> bool:
        if self._small or self._control or self._outgoing.has_work:
            return True
        return self._is_draining and self._owes_done

    @property
    def is_direct(self) -> bool:
        """Whether `room()` is a part of a large body, best filled at once."""
        return self._reader.is_direct

    @property
    def wants_input(self) -> bool:
        """False while the peer has more unread answers than a fair one could have: it has to read first (LM3)."""
        return self._waiting_bytes <= self._queue_bytes_max + self._answers_bytes_max

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    @property
    def is_drained(self) -> bool:
        """Both sides have said all they had to say, and all of it was answered."""
        return self._done_sent and self._done_received and not self._running and not self.queued_bytes

    @property
    def calls(self) -> int:
        return len(self._calls)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def queued_bytes(self) -> int:
        return self._waiting_bytes + self._outgoing.queued_bytes

    @property
    def small_bytes(self) -> int:
        """The bytes that wait to be sent, without large bodies."""
        return self._waiting_bytes

    @property
    def bulk_bytes(self) -> int:
        """The bytes of large bodies that wait to be sent."""
        return self._outgoing.queued_bytes

    @property
    def held_bytes(self) -> int:
        return self._incoming.held_bytes

    # --- beginning ---------------------------------------------------------------------------------

    def say_hello(self, hello: LinkHello) -> None:
        self._put_control(frame(FrameType.HELLO, body=hello.encode()))

    def accept(self, theirs: PeerLimits) -> None:
        """The peer's hello was accepted. A listener still has to get READY before it may send messages."""
        self._theirs = theirs
        self._outgoing = BulkSender(transfers_max=theirs.transfers_max, initial_credit=theirs.initial_credit)
        if self._is_dialler:
            self._put_control(frame(FrameType.READY))
            self._is_open = True

    def refuse(self, error: LogError) -> None:
        """Send the reason to the peer; then close."""
        self._put_control(frame(FrameType.REFUSED, body=encode_refusal(error)))

    # --- what we say -------------------------------------------------------------------------------

    def post(self, peer: str, kind: int, body: Buffers) -> None:
        self._say(_MESSAGE, peer, kind, 0, body)
        self.messages_sent += 1

    def ask(self, peer: str, kind: int, body: Buffers) -> int:
        """Begin a call; its number comes back with the answer."""
        if len(self._calls) >= self._options.calls_max:
            raise LinkBusy(peer=peer, waiting=len(self._calls), limit=self._options.calls_max)
        call = self._next_call
        self._say(FrameType.REQUEST, peer, kind, call, body)
        self._next_call += 1
        self._calls.add(call)
        return call

    def answer(self, call: int, body: Buffers) -> None:
        """Nothing happens if the peer has cancelled the call meanwhile."""
        if call not in self._running:
            return
        self._put(FrameType.ANSWER, 0, call, body)
        self._end_request(call)

    def fail(self, call: int, error: LogError) -> None:
        if call in self._running:
            self._end_request(call)
            self._put_small(frame(FrameType.FAILURE, number=call, body=encode_refusal(error)))

    def cancel(self, call: int) -> None:
        """The caller no longer waits for this answer (LM2)."""
        if call not in self._calls:
            return
        self._calls.remove(call)
        request = self._outgoing.find(FrameType.REQUEST, call)
        if request is None:
            # In line with the small frames: it must not overtake its request.
            self._put_small(frame(FrameType.CANCEL, number=call))
        else:
            self._abort(request)

    def drain(self) -> None:
        """Start nothing new; what is in flight may end."""
        if not self._is_draining:
            self._is_draining = True
            self._put_control(frame(FrameType.DRAIN))

    def close(self) -> None:
        """The link has ended; nothing is received any more."""
        self._reader.close()

    def _say(self, frame_type: int, peer: str, kind: int, number: int, body: Buffers) -> None:
        if self._is_draining or not self._is_open:
            raise LinkClosed(peer=peer, reason="it is being closed" if self._is_draining else "it is not open yet")
        if self._waiting_bytes >= self._queue_bytes_max:
            raise LinkBusy(peer=peer, waiting=self._waiting_bytes, limit=self._queue_bytes_max)
        large = self._put(frame_type, kind, number, body, bulk_bytes_max=self._options.bulk_queue_bytes_max)
        if not large:
            raise LinkBusy(peer=peer, waiting=self._outgoing.queued_bytes, limit=self._options.bulk_queue_bytes_max)

    def _put(self, frame_type: int, kind: int, number: int, body: Buffers, bulk_bytes_max: int | None = None) -> bool:
        """Queue a body; False if it is a large one for which there is no room."""
        assert 0 <= kind <= KIND_MAX
        if type(body) is list and sum(map(len, body)) <= SMALL_BYTES_MAX:
            body = b"".join(body)
        if type(body) is bytes and len(body) <= SMALL_BYTES_MAX:
            data = HEAD.pack(len(body), frame_type, 0, kind, number) + body
            self._small.append(data)
            self._waiting_bytes += len(data)
            return True
        pieces, size = pieces_of(body)
        if size <= SMALL_BYTES_MAX:
            self._put_small(b"".join([HEAD.pack(size, frame_type, 0, kind, number), *pieces]))
            return True
        assert self._theirs is not None
        if size > self._theirs.body_bytes_max:
            raise BodyTooLarge(size=size, bytes_max=self._theirs.body_bytes_max)
        queued_bytes = self._outgoing.queued_bytes
        if bulk_bytes_max is not None and queued_bytes and queued_bytes + size > bulk_bytes_max:
            return False
        self._outgoing.add(
            OutgoingBody(frame_type=frame_type, kind=kind, number=number, pieces=deque(pieces), left=size)
        )
        return True

    def _put_small(self, data: bytes) -> None:
        self._small.append(data)
        self._waiting_bytes += len(data)

    def _put_control(self, data: bytes) -> None:
        self._control.append(data)
        self._waiting_bytes += len(data)

    def _end_request(self, call: int) -> None:
        held_bytes = self._running.pop(call)
        if held_bytes:
            self._incoming.release(held_bytes)
            self._grant()

    def _abort(self, outgoing: OutgoingBody) -> None:
        transfer = self._outgoing.abort(outgoing)
        if transfer is not None:
            self._put_control(frame(FrameType.ABORT, number=transfer))

    # --- writing -----------------------------------------------------------------------------------

    def next_write(self, now_us: int) -> list[memoryview]:
        """The buffers to write next, in order; empty if there is nothing to send."""
        if self._is_draining and self._owes_done:
            self._done_sent = True
            self._put_small(frame(FrameType.DONE))
        prefix = self._control
        self._control = []
        size = sum(map(len, prefix))
        small = self._small
        if self._waiting_bytes <= _WRITE_BYTES:
            prefix += small
            small.clear()
            self._waiting_bytes = 0
        else:
            while small and size < _WRITE_BYTES:
                prefix.append(small.popleft())
                size += len(prefix[-1])
            self._waiting_bytes -= size
        self._write_began_us = now_us
        self._write_has_chunk = self._outgoing.has_work
        if self._write_has_chunk:
            return self._outgoing.next_chunk(self._chunk_bytes, prefix)
        return [memoryview(b"".join(prefix))] if prefix else []

    @property
    def has_control(self) -> bool:
        return bool(self._control)

    def next_control(self, now_us: int) -> list[memoryview]:
        """Control frames alone: credit that a sender waits for, while there is still something to receive."""
        control, self._control = self._control, []
        self._waiting_bytes -= sum(map(len, control))
        self._write_began_us = now_us
        self._write_has_chunk = False
        return [memoryview(b"".join(control))]

    def progressed(self, now_us: int) -> None:
        """The connection took some bytes."""
        self._wrote_us = now_us

    def wrote(self, now_us: int) -> None:
        """All of the last `next_write` was sent. Chunks shrink where they take long, so that others wait less."""
        self._wrote_us = now_us
        if not self._write_has_chunk or self._write_began_us is None:
            return
        took_us = now_us - self._write_began_us
        if took_us > _CHUNK_SLOW_US:
            self._chunk_bytes = max(CHUNK_BYTES_MIN, self._chunk_bytes // 2)
        elif took_us < _CHUNK_FAST_US:
            self._chunk_bytes = min(CHUNK_BYTES_MAX, self._chunk_bytes * 2)

    @property
    def _owes_done(self) -> bool:
        return (
            self._is_draining
            and not self._done_sent
            and not self._calls
            and not self._small
            and self._outgoing.has_only_answers()
        )

    # --- time --------------------------------------------------------------------------------------

    def wake(self, now_us: int, *, is_blocked: bool) -> str | None:
        """Ping when it is due; returns why the link is dead, if it is. `is_blocked`: the connection takes no bytes
        now."""
        options = self._options
        if self.wants_input and now_us - self._heard_us >= options.silence_max_ms * 1000:
            return f"the peer has been silent for {options.silence_max_ms} ms"
        if is_blocked and now_us - self._wrote_us >= options.stall_max_ms * 1000:
            return f"the peer has read nothing for {options.stall_max_ms} ms"
        if self._is_open and self._ping_us is None and now_us - self._pinged_us >= options.ping_interval_ms * 1000:
            self._ping_us = self._pinged_us = now_us
            self._put_control(frame(FrameType.PING, number=now_us))
        return None

    # --- what the peer says ------------------------------------------------------------------------

    def received(self, count: int, now_us: int) -> list[Event]:
        """`count` bytes were received into `room()`. Raises `BadFrame` or `WrongVersion`: then close (LM5)."""
        events: list[Event] = []
        messages = 0
        self._heard_us = now_us
        is_open = self._is_open
        for one in self._reader.received(count):
            if one[0] == _MESSAGE and is_open and one[1] == 0:
                events.append(Arrived(one[2], one[4]))
                messages += 1
                continue
            self._takers[one[0]](one, events, now_us)
            is_open = self._is_open
        self.messages_received += messages
        return events

    def _require_open(self) -> None:
        if not self._is_open:
            raise BadFrame(problem="a message came before the hello")

    def _take_hello(self, one: Frame, events: list[Event], now_us: int) -> None:
        if self._has_hello:
            raise BadFrame(problem="a second HELLO")
        self._has_hello = True
        events.append(HelloArrived(decode_hello(one[4])))

    def _take_ready(self, one: Frame, events: list[Event], now_us: int) -> None:
        if self._is_dialler or self._is_open or self._theirs is None:
            raise BadFrame(problem="a READY out of turn")
        self._is_open = True
        events.append(Opened())

    def _take_refused(self, one: Frame, events: list[Event], now_us: int) -> None:
        events.append(LinkRefused(decode_refusal(one[4])))

    def _take_body(self, one: Frame, events: list[Event], now_us: int) -> None:
        frame_type, flags, kind, number, body = one
        self._require_open()
        if flags & ~LARGE:
            raise BadFrame(problem=f"a frame of type {frame_type} has unknown flags {flags:#x}")
        if frame_type == FrameType.REQUEST:
            # Small ones overtake large ones, so each sort rises by itself.
            if number <= self._last_requests[flags] or number in self._running:
                raise BadFrame(problem=f"request {number} comes after {self._last_requests[flags]}")
            self._last_requests[flags] = number
        elif frame_type == FrameType.ANSWER and not 0 < number < self._next_call:
            raise BadFrame(problem=f"an answer to call {number}, which was never made")
        if flags:
            self._incoming.announced(frame_type, kind, number, body)
            self._grant()
        else:
            self._deliver(frame_type, kind, number, body, events, held_bytes=0)

    def _deliver(
        self, frame_type: int, kind: int, number: int, body: memoryview, events: list[Event], *, held_bytes: int
    ) -> None:
        if frame_type == FrameType.REQUEST:
            self._admit(number, kind, body, events, held_bytes)
            return
        # Messages and answers belong to their receiver from here on.
        self._incoming.release(held_bytes)
        if frame_type == FrameType.MESSAGE:
            self.messages_received += 1
            events.append(Arrived(kind, body))
        elif number in self._calls:
            self._calls.remove(number)
            events.append(Answered(number, body))

    def _admit(self, call: int, kind: int, body: memoryview, events: list[Event], held_bytes: int) -> None:
        """A request, if there is room to work on it (LM4)."""
        limit, bulk_limit = self._options.taken.requests_max, self._options.bulk_queue_bytes_max
        if len(self._running) < limit and self._outgoing.queued_bytes <= bulk_limit:
            self._running[call] = held_bytes
            events.append(Asked(call, kind, body))
            return
        self._incoming.release(held_bytes)
        if len(self._running) < limit:
            busy = LinkBusy(peer="this node's answers", waiting=self._outgoing.queued_bytes, limit=bulk_limit)
        else:
            busy = LinkBusy(peer="this node's handlers", waiting=len(self._running), limit=limit)
        self._put_small(frame(FrameType.FAILURE, number=call, body=encode_refusal(busy)))

    def _take_failure(self, one: Frame, events: list[Event], now_us: int) -> None:
        self._require_open()
        call = one[3]
        if not 0 < call < self._next_call:
            raise BadFrame(problem=f"a refusal of call {call}, which was never made")
        refusal = decode_refusal(one[4])
        if call in self._calls:
            self._calls.remove(call)
            events.append(Failed(call, refusal))

    def _take_cancel(self, one: Frame, events: list[Event], now_us: int) -> None:
        self._require_open()
        call = one[3]
        if not 0 < call <= max(self._last_requests):
            raise BadFrame(problem=f"request {call} is cancelled and was never made")
        if call in self._running:
            self._end_request(call)
            events.append(Cancelled(call))
        else:
            answer = self._outgoing.find(FrameType.ANSWER, call)
            if answer is not None:
                self._abort(answer)

    def _take_data(self, one: Frame, events: list[Event], now_us: int) -> None:
        transfer = one[3]
        whole = self._incoming.landed(transfer)
        if self.meter.moved(one[2], now_us, is_last=not len(self._incoming)):
            self._incoming.measured(self.meter.bytes_per_s, self._rtt_us_min or 0)
        if whole is not None:
            body = whole.body
            self._deliver(whole.frame_type, whole.kind, whole.number, body, events, held_bytes=len(body))
        self._grant()

    def _take_credit(self, one: Frame, events: list[Event], now_us: int) -> None:
        self._require_open()
        if len(one[4]) != CREDIT.size:
            raise BadFrame(problem=f"a CREDIT of {len(one[4])} bytes")
        self._outgoing.credited(one[3], CREDIT.unpack(one[4])[0])

    def _take_abort(self, one: Frame, events: list[Event], now_us: int) -> None:
        self._require_open()
        aborted = self._incoming.aborted(one[3])
        self._grant()
        if aborted is not None and aborted.frame_type == FrameType.ANSWER and aborted.number in self._calls:
            raise BadFrame(problem=f"the answer to call {aborted.number} was given up by the peer")

    def _take_ping(self, one: Frame, events: list[Event], now_us: int) -> None:
        self._require_open()
        self._put_control(frame(FrameType.PONG, number=one[3]))

    def _take_pong(self, one: Frame, events: list[Event], now_us: int) -> None:
        if self._ping_us is None or one[3] != self._ping_us:
            raise BadFrame(problem="a PONG to no ping of ours")
        self.rtt_us = now_us - self._ping_us
        self._rtt_us_min = min(self.rtt_us, self._rtt_us_min or self.rtt_us)
        self._ping_us = None

    def _take_drain(self, one: Frame, events: list[Event], now_us: int) -> None:
        self._require_open()
        self._is_draining = True
        events.append(Draining())

    def _take_done(self, one: Frame, events: list[Event], now_us: int) -> None:
        self._require_open()
        self._done_received = True

    def _grant(self) -> None:
        for transfer, count in self._incoming.grants():
            self._put_control(frame(FrameType.CREDIT, number=transfer, body=CREDIT.pack(count)))
