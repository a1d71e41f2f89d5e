"""How a producer handles its blocks: send in order, send again under the same seqs, and report each block's outcome
once.

Nothing here does I/O. The shell cuts batches into blocks and adds them; asks `next_send` what may leave; passes in
answers, losses and the time; and reads `wants_identity` and `wants_route` to learn what the core waits for.

The node takes a producer's blocks only without gaps in their seqs, and answers a block that it already has with its
place. So sending again is always safe, and a refused block delays all later ones until it is sent again.

What a caller must keep: after `next_send` the block leaves on the current route, or `not_sent` is called; a route that
is given up is reported with `route_lost` before another is used.

CP1  Blocks are sent in the order of their seqs; one that must be sent again goes before all later ones.
CP2  A block's outcome is reported once: its offset, or an error that is definite only if no attempt can have succeeded.
CP3  Seqs are never given to other records under the same producer epoch: numbering starts over only with a new epoch,
     and only when the node has shown that it holds none of the blocks without an answer.
CP4  The link keeps small bodies in order and lets them overtake large ones: after a large body no small one is sent
     before it is answered, and after a very large one no body at all.
CP5  A deleted channel holds nothing. In a new channel of its name every block without an answer is sent as new: under
     another identity, from seq 1 on, so that blocks of the old channel do not count as present. A block that was wanted
     at an offset of the old channel is refused.
CP6  Where the application resumes paused channels (`outlasts_pause`), a block that was interrupted by a pause, and so
     may be in the log, is sent again under its seqs until its time is up: only the log shows whether it is there.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from operator import attrgetter
from typing import Final, NamedTuple

from tidelog.blocks.block import MadeBlock
from tidelog.client.producing.batching import RecordBatch
from tidelog.client.retry import Backoff
from tidelog.codecs.client_codec import PRODUCE_HEAD_BYTES
from tidelog.core.client_messages import ANY_OFFSET, Produced
from tidelog.errors import (
    ChannelDeleted,
    ChannelPaused,
    ClientClosed,
    LeadershipLost,
    LogError,
    NotChannelLeader,
    OutcomeUnknown,
    OutOfSequence,
    ProducerFenced,
    UnknownChannel,
    UnknownProducer,
    WaitTimedOut,
)
from tidelog.transports.link.frames import SMALL_BYTES_MAX
from tidelog.units import KIB

IN_TURN_BYTES_MAX: Final = 96 * KIB
"""Bodies up to this size are sent whole and one after the other, as long as the link is quick. If it is not, the node
refuses what came too early, and it is sent again."""
WIRE_BYTES_MAX: Final = 16 * 1024 * KIB
"""The most blocks in flight; the rest waits here, where it does not fill the link's queue."""

_BY_SEQ: Final = attrgetter("base_seq")


class Flight:
    """One block, from its making to its outcome."""

    __slots__ = ("base_seq", "batch", "count", "is_unsure", "made", "problem", "sent_ms", "size", "token")

    def __init__(self, batch: RecordBatch, made: MadeBlock) -> None:
        self.batch = batch
        self.made = made
        self.base_seq = made.maker.base_seq
        self.count = made.maker.record_count
        self.size = PRODUCE_HEAD_BYTES + len(made.maker_bytes) + len(made.body)
        self.token = 0
        self.sent_ms = 0
        self.is_unsure = False
        """An attempt may have put it into the log."""
        self.problem: LogError | None = None
        """Why the last attempt failed."""


class Fate(NamedTuple):
    """The outcome of a flight."""

    flight: Flight
    first_offset: int
    error: LogError | None


class ProducerCore:
    """The blocks of one producer that have no answer yet."""

    def __init__(
        self,
        *,
        channel: str,
        requests_max: int,
        timeout_ms: int,
        backoff: Backoff,
        first_token: int,
        outlasts_pause: bool = False,
    ) -> None:
        self._channel = channel
        self._outlasts_pause = outlasts_pause
        self._requests_max = requests_max
        self._timeout_ms = timeout_ms
        self._backoff = backoff
        self._next_token = first_token
        self._sent: deque[Flight] = deque()
        """Blocks in flight, by seq."""
        self._unsent: deque[Flight] = deque()
        """Blocks to be sent, for the first time or again, by seq."""
        self._by_token: dict[int, Flight] = {}
        self._wire_bytes = 0
        self._needs_identity = True
        self._next_seq = 1
        self.identity = b""
        self.wants_route = True
        self.resume_ms = 0
        """Nothing is sent before this time."""
        self.fatal: LogError | None = None
        """Why this producer has ended."""
        self.route_problem: LogError | None = None
        """Why there is no route to the leader."""

    # --- facts -------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of blocks without an answer."""
        return len(self._sent) + len(self._unsent)

    @property
    def next_seq(self) -> int:
        return self._next_seq

    @property
    def wants_identity(self) -> bool:
        """Whether the producer must be opened (again). Not while an answer under the old epoch may come."""
        return self._needs_identity and not self._sent and self.fatal is None

    @property
    def may_cut(self) -> bool:
        """Whether another batch may become a block: it would be sent next."""
        return not self._needs_identity and not self._unsent and self.fatal is None

    def oldest_sent_ms(self) -> int | None:
        """When the block that waits longest for its answer was sent."""
        return self._sent[0].sent_ms if self._sent else None

    def has_room(self, size: int, now_ms: int) -> bool:
        """Whether a block of this size may leave now (CP4)."""
        if self._needs_identity or self.wants_route or self.fatal is not None or now_ms < self.resume_ms:
            return False
        if not self._sent:
            return True
        if len(self._sent) >= self._requests_max or self._wire_bytes + size > WIRE_BYTES_MAX:
            return False
        last = self._sent[-1].size
        return last <= SMALL_BYTES_MAX or (SMALL_BYTES_MAX < size <= IN_TURN_BYTES_MAX and last <= IN_TURN_BYTES_MAX)

    # --- what the shell does -----------------------------------------------------------------------

    def opened(self, identity: bytes) -> None:
        """The producer has an epoch of its own. Blocks without an answer are numbered anew under it (CP3)."""
        assert self.wants_identity
        self.identity = identity
        self._needs_identity = False
        self._next_seq = 1
        for flight in self._unsent:
            flight.made = flight.made.renumbered(producer=identity, base_seq=self._next_seq)
            flight.base_seq = self._next_seq
            self._next_seq += flight.count

    def route_found(self) -> None:
        self.wants_route = False
        self.route_problem = None

    def add(self, batch: RecordBatch, made: MadeBlock) -> Flight:
        """Add a block that was made with `identity` and `next_seq`."""
        assert made.maker.base_seq == self._next_seq, "CP1"
        flight = Flight(batch, made)
        self._next_seq += flight.count
        self._unsent.append(flight)
        return flight

    def next_send(self, now_ms: int) -> Flight | None:
        """The next block to send, if one may be sent; it counts as sent."""
        if not self._unsent:
            return None
        flight = self._unsent[0]
        if self._sent and self._sent[-1].base_seq > flight.base_seq:
            return None  # CP1: later blocks must be answered first, or they would be in flight twice
        if not self.has_room(flight.size, now_ms):
            return None
        self._unsent.popleft()
        self._sent.append(flight)
        self._wire_bytes += flight.size
        flight.token = self._next_token
        flight.sent_ms = now_ms
        self._next_token += 1
        self._by_token[flight.token] = flight
        return flight

    def not_sent(self, flight: Flight, now_ms: int) -> None:
        """The link had no room for it, and nothing of it was sent."""
        assert self._sent[-1] is flight
        self._leave_sent(flight)
        self._unsent.appendleft(flight)
        self.resume_ms = now_ms + self._backoff.failed()

    # --- what happens ------------------------------------------------------------------------------

    def answered(self, answer: Produced, now_ms: int) -> list[Fate]:
        flight = self._by_token.get(answer.token)
        if flight is None:
            return []  # of an attempt that was given up
        self._leave_sent(flight)
        error = answer.error
        if error is None:
            self._backoff.succeeded()
            return [Fate(flight, answer.first_offset, None)]
        if not error.definite:
            flight.is_unsure = True
        flight.problem = error
        if isinstance(error, OutOfSequence):
            return self._out_of_sequence(flight, error, now_ms)
        if isinstance(error, ProducerFenced):
            self.fatal = error
            return [self._failed(flight, error), *self.end(error)]
        outlasts = self._outlasts_pause and flight.is_unsure and isinstance(error, ChannelPaused)  # CP6
        if not (error.retriable or outlasts or isinstance(error, UnknownProducer | UnknownChannel | ChannelDeleted)):
            return [self._failed(flight, error)]
        if isinstance(error, UnknownProducer):
            return self._closed(flight, error, now_ms)
        self._put_back(flight)
        # A node may not have heard of a new channel yet. The search for the leader finds out whether the channel
        # exists.
        is_elsewhere = isinstance(error, NotChannelLeader | LeadershipLost | UnknownChannel | ChannelDeleted)
        self.wants_route = self.wants_route or is_elsewhere
        self.resume_ms = now_ms + self._backoff.failed()
        return []

    def route_lost(self) -> None:
        """The link ended, or another node leads: blocks in flight may have arrived or not."""
        self.wants_route = True
        for flight in self._sent:
            flight.is_unsure = True
        self._unsent = deque(sorted((*self._sent, *self._unsent), key=_BY_SEQ))
        self._sent.clear()
        self._by_token.clear()
        self._wire_bytes = 0

    def recreated(self, error: LogError) -> list[Fate]:
        """The name now belongs to another channel (CP5); `error` for blocks that were wanted in the old one."""
        self.route_lost()
        self._needs_identity = True
        flights, self._unsent = self._unsent, deque()
        fates = []
        for flight in flights:
            flight.is_unsure = False
            if flight.batch.expected_offset == ANY_OFFSET:
                self._unsent.append(flight)
            else:
                fates.append(Fate(flight, 0, error))
        return fates

    def refuse_waiting(self, error: LogError) -> list[Fate]:
        """There is no channel now: waiting blocks get the error. Blocks that are added later may find one."""
        self.route_lost()
        self._needs_identity = True
        flights, self._unsent = self._unsent, deque()
        return [self._failed(flight, error) for flight in flights]

    def wake(self, now_ms: int) -> list[Fate]:
        """Blocks whose time is up."""
        fates = []
        for queue in (self._sent, self._unsent):
            while queue and queue[0].batch.deadline_ms <= now_ms:
                flight = queue[0]
                if queue is self._sent:
                    flight.is_unsure = True
                    self._leave_sent(flight)
                else:
                    queue.popleft()
                fates.append(Fate(flight, 0, self._late(flight)))
        return fates

    def never_sent(self) -> LogError:
        """The error of records that were late before they became a block."""
        problem = self.route_problem
        if problem is not None and problem.definite:
            return problem
        what = f"room for a block of {self._channel!r}"
        return WaitTimedOut(waiting_for=what, deadline_s=self._timeout_ms / 1000)

    def end(self, error: LogError | None = None) -> list[Fate]:
        """The producer has ended: nothing more is sent."""
        self.fatal = self.fatal or error or ClientClosed(what=f"the producer of {self._channel!r}")
        self.route_lost()
        flights, self._unsent = self._unsent, deque()
        return [self._failed(flight, self.fatal) for flight in flights]

    # --- inside ------------------------------------------------------------------------------------

    def _out_of_sequence(self, flight: Flight, error: OutOfSequence, now_ms: int) -> list[Fate]:
        if error.expected >= flight.base_seq + flight.count:
            # It is in the log, and the node no longer knows where.
            return [Fate(flight, 0, OutcomeUnknown(what=f"a block of {self._channel!r}"))]
        is_first = all(not queue or queue[0].base_seq > flight.base_seq for queue in (self._sent, self._unsent))
        self._put_back(flight)
        if is_first:
            # Nothing precedes it here, and the node misses something: a block that ended with an error, or records that
            # an unclean election lost. Neither this block nor any later one is in the log, or can get there (CP3).
            self._needs_identity = True
            for one in (*self._sent, *self._unsent):
                one.is_unsure = False
            self.resume_ms = now_ms + self._backoff.failed()
        return []

    def _closed(self, flight: Flight, error: UnknownProducer, now_ms: int) -> list[Fate]:
        """The producer was closed, and what it had written is no longer known: a block that may be in the log is not
        sent again under another identity, which could write it twice (CP3)."""
        self._put_back(flight)
        self._needs_identity = True
        self.resume_ms = now_ms + self._backoff.failed()
        unsure = [one for one in self._unsent if one.is_unsure]
        if unsure:
            self._unsent = deque(one for one in self._unsent if not one.is_unsure)
        return [self._failed(one, error) for one in unsure]

    def _leave_sent(self, flight: Flight) -> None:
        del self._by_token[flight.token]
        self._wire_bytes -= flight.size
        if self._sent[0] is flight:
            self._sent.popleft()
        else:
            self._sent.remove(flight)

    def _put_back(self, flight: Flight) -> None:
        if not self._unsent or flight.base_seq < self._unsent[0].base_seq:
            self._unsent.appendleft(flight)
        else:
            insort(self._unsent, flight, key=_BY_SEQ)

    def _failed(self, flight: Flight, error: LogError) -> Fate:
        """The error, as definite as the attempts allow (CP2)."""
        if flight.is_unsure and error.definite:
            unknown = OutcomeUnknown(what=f"a block of {self._channel!r}")
            unknown.add_note(f"last: {error}")
            return Fate(flight, 0, unknown)
        return Fate(flight, 0, error)

    def _late(self, flight: Flight) -> LogError:
        problem = flight.problem or self.route_problem
        if problem is not None and problem.definite and not flight.is_unsure:
            return problem
        what = f"the answer to a block of {self._channel!r}"
        late = WaitTimedOut(waiting_for=what, deadline_s=self._timeout_ms / 1000)
        if problem is not None:
            late.add_note(f"last: {problem}")
        return late
