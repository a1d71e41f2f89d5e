"""Pacing of first requests to leaders: after a restart a node has thousands of channels that all send one.

A follower without contact sends a request to its leader and repeats it. With very many of them, requests would arrive
faster than the leader's node answers, and each would be repeated before its answer came. So the number of unanswered
first requests is limited; the next is sent when one was answered or timed out. Nothing here does I/O.

What a caller must keep: call `answered` when a request was answered or is about to be repeated, `in_contact` when the
channel has contact, `forget` when it follows no leader; call `granted` after every input, and `answered` for channels
that then send no request.

RFR1  At most `requests_max` channels of one leader's node have an unanswered first request. A node that is dead or slow
     delays no requests to other nodes.
RFR2  Waiting channels are granted a request in the order in which they came, before repetitions. Channels that were
     answered or forgotten use up no place.
RFR3  While at most `requests_max` channels are without contact, none waits and no interval is longer.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Final

REQUESTS_MAX: Final = 256


class FirstRequests:
    """The first requests of all followers of a node."""

    def __init__(self, requests_max: int) -> None:
        self._requests_max = requests_max
        self._apart: set[int] = set()
        """Channels without contact that have sent a request or wait to."""
        self._asking: dict[int, str] = {}
        """The leader's node of each channel with an unanswered request."""
        self._counts: Counter[str] = Counter()
        self._waiting: dict[str, dict[int, None]] = {}
        """Waiting channels by the leader's node, in the order of their arrival."""
        self._waits_for: dict[int, str] = {}

    def may_ask(self, peer: str, channel_id: int) -> bool:
        """Whether this channel sends its request to that node now; if not, `granted` returns it when its turn comes."""
        self._apart.add(channel_id)
        if self._asking.get(channel_id) == peer:
            return True
        if self._waits_for.get(channel_id) == peer:
            return False
        self._drop(channel_id)
        if self._counts[peer] < self._requests_max and not self._waiting.get(peer):
            self._take(peer, channel_id)
            return True
        self._waiting.setdefault(peer, {})[channel_id] = None
        self._waits_for[channel_id] = peer
        return False

    def _take(self, peer: str, channel_id: int) -> None:
        self._asking[channel_id] = peer
        self._counts[peer] += 1

    def answered(self, channel_id: int) -> None:
        """An answer came, or none in time: the next channel may send a request. A waiting channel stays in line."""
        peer = self._asking.pop(channel_id, None)
        if peer is not None:
            self._counts[peer] -= 1

    def _drop(self, channel_id: int) -> None:
        self.answered(channel_id)
        waits_for = self._waits_for.pop(channel_id, None)
        if waits_for is not None:
            del self._waiting[waits_for][channel_id]

    def in_contact(self, channel_id: int) -> None:
        self._drop(channel_id)
        self._apart.discard(channel_id)

    forget = in_contact

    def granted(self) -> list[int]:
        """Channels that waited and have a place now."""
        found: list[int] = []
        for peer, waiting in self._waiting.items():
            room = self._requests_max - self._counts[peer]
            for channel_id in list(islice(waiting, max(0, room))):
                del waiting[channel_id], self._waits_for[channel_id]
                self._take(peer, channel_id)
                found.append(channel_id)
        return found

    def paced_ms(self, wait_ms: int, limit_ms: int) -> int:
        """How long to wait before something is said again that takes `wait_ms` where few channels are without contact:
        all of them together say it no more often than `requests_max` do, but each at least every `limit_ms`."""
        crowd = -(-len(self._apart) // self._requests_max)
        return wait_ms if crowd <= 1 else max(wait_ms, min(wait_ms * crowd, limit_ms))

    @property
    def apart(self) -> int:
        return len(self._apart)

    @property
    def asking(self) -> int:
        return len(self._asking)

    @property
    def waiting(self) -> int:
        return len(self._waits_for)
