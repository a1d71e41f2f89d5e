"""First requests to leaders, paced: after a restart a node has thousands of channels that all ask at once.

A follower that is not in contact asks its leader, and asks again. With very many of them the questions come faster than
a node answers, each is asked again before its answer came, and the more is asked the less is answered. So only so many
of one node's channels have an unanswered first request; the next asks when one was answered, or gave up waiting.
Nothing here does I/O.

What a caller must keep: `answered` whenever a request was answered or is about to be repeated, `in_contact` when the
channel needs to ask no more, `forget` when it follows nobody; `granted` after every input, and `answered` for those of
its channels that did not ask after all.

RFR1  At most `requests_max` channels of one leader's node have an unanswered first request. A node that is dead or slow
     keeps nobody from asking another one.
RFR2  Who waits is served in the order in which it came, also before who asks again; what is answered or forgotten holds
     no place.
RFR3  While no more than `requests_max` channels are without contact, nothing waits and nothing takes longer.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Final

REQUESTS_MAX: Final = 256


class FirstRequests:
    """Of one node's followers."""

    def __init__(self, requests_max: int) -> None:
        self._requests_max = requests_max
        self._apart: set[int] = set()
        """Channels that want to ask, or asked, and are not in contact."""
        self._asking: dict[int, str] = {}
        """Leaders' nodes by channel."""
        self._counts: Counter[str] = Counter()
        self._waiting: dict[str, dict[int, None]] = {}
        """Channels by leaders' nodes, the longest waiting first."""
        self._waits_for: dict[int, str] = {}

    def may_ask(self, peer: str, channel_id: int) -> bool:
        """Whether this channel asks that node now; if not, `granted` names it when its turn has come."""
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
        """Whatever the answer, or no answer came in time: the next may ask. Who waits for its turn still does."""
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
