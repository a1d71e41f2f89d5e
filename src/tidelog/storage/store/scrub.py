"""Scrubbing all channels of a store, one after the other, within one rate."""

from __future__ import annotations

from tidelog.errors import LogError
from tidelog.storage.log.scrub import Scrubber
from tidelog.storage.store.open_channels import OpenChannels
from tidelog.units import US_PER_S

_EARNED_MAX_US = 10 * US_PER_S
_ROUND_MIN_US = 600 * US_PER_S
"""A round of many small channels is over soon; the next one need not follow at once."""
_CHANNELS_PER_WAKE_MAX = 256
"""The thread that scrubs commits appends too, and must not wait for thousands of small channels."""


class StoreScrubber:
    """Goes round the channels by id; a channel that cannot be read now is passed over until the next round."""

    def __init__(self, *, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._last_us: int | None = None
        self._allowance_bytes = 0
        self._channel_id = 0
        self._name = ""
        self._queue: list[tuple[int, str]] = []
        """Channels that are still to come in this round, the next one last."""
        self._scrubber: Scrubber | None = None
        self._round_began_us: int | None = None
        self._rests = False
        self.bytes_checked = 0
        self.rounds = 0
        self.damaged: list[tuple[str, range]] = []
        """Channel and offsets of everything found since the store was opened."""

    def wake(self, store: OpenChannels, now_us: int) -> None:
        """Check what the rate has earned since the last call; time without calls is not saved up."""
        elapsed_us = 0 if self._last_us is None else min(max(0, now_us - self._last_us), _EARNED_MAX_US)
        self._last_us = now_us
        self._allowance_bytes = min(self._allowance_bytes, 0) + elapsed_us * self._bytes_per_s // US_PER_S
        # A clock that was set back must not make it rest for longer.
        if self._round_began_us is None or not 0 <= now_us - self._round_began_us < _ROUND_MIN_US:
            if self._rests or self._round_began_us is None:
                self._round_began_us = now_us
            self._rests = False
        channels_left = min(len(store.channels), _CHANNELS_PER_WAKE_MAX)
        while self._allowance_bytes > 0 and channels_left >= 0 and not self._rests:
            if not self._check_some(store, now_us):
                channels_left -= 1

    def _check_some(self, store: OpenChannels, now_us: int) -> bool:
        """Check a piece of the current channel; False when it is done and the next one is up."""
        channel = store.channels.get(self._name)
        if channel is not None and channel.channel_id == self._channel_id:
            try:
                log = channel.log or store.open_channel(channel, now_us)
                if self._scrubber is None or self._scrubber.log is not log:
                    self._scrubber = Scrubber(log)
                before = self._scrubber.statistics()
                found = self._scrubber.check(self._allowance_bytes)
                after = self._scrubber.statistics()
            except LogError as error:
                store.trouble = error
            else:
                checked = after.bytes_checked - before.bytes_checked
                self._allowance_bytes -= checked
                self.bytes_checked += checked
                self.damaged += [(channel.name, part) for part in found]
                if after.passes == before.passes:
                    return True
        self._next_channel(store)
        return False

    def _next_channel(self, store: OpenChannels) -> None:
        self._scrubber = None
        if not self._queue:
            self._queue = sorted(((part.channel_id, part.name) for part in store.channels.values()), reverse=True)
            if self._channel_id:
                self.rounds += 1
                self._rests = True
        self._channel_id, self._name = self._queue.pop() if self._queue else (0, "")
