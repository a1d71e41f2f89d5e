"""Which member of a group reads which channel: a pure function of the members, their assignments, and the channels.

Every node computes it when it applies a change of a group, and all must get the same result: everything is processed in
a fixed order, members by name and channels by id.

GA1  Every channel that a member wants is assigned to exactly one member, and that one wants it.
GA2  No member has two channels more than another member that wants one of them. If all want the same channels, their
     shares differ by one at most.
GA3  An assignment stays, unless its member left, no longer wants the channel, or GA2 requires a move: a member that
     joins takes no more than its share, and one that leaves moves only its own channels.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from tidelog.core.catalog.records import GROUP_PARTITIONS_MAX, ChannelRecord, GroupMember

Wishes: TypeAlias = dict[int, tuple[str, ...]]
"""Channel id to the members that want it, by name."""

_SWEEPS_MAX: Final = 64
"""Where members want different channels, a move between one pair may unbalance another. It settles in two or three
rounds."""


class ChannelNames:
    """Channels by name, with all names in order, so that a prefix is one look-up."""

    def __init__(self, channels: Mapping[int, ChannelRecord], ids: Mapping[str, int]) -> None:
        """`ids` are those of channels by their names in lower case."""
        self._channels = channels
        self._ids = ids
        self._names: list[tuple[str, int]] | None = None

    def matching(self, pattern: str) -> list[int]:
        """Ids of channels with this name, or with names that begin with the part before the star."""
        if not pattern.endswith("*"):
            return self._named(pattern)
        if self._names is None:
            self._names = sorted((record.name, channel_id) for channel_id, record in self._channels.items())
        prefix = pattern[:-1]
        found = []
        for place in range(bisect_left(self._names, (prefix, 0)), len(self._names)):
            name, channel_id = self._names[place]
            if not name.startswith(prefix):
                break
            found.append(channel_id)
        return found

    def partitions(self, stream: str) -> list[int]:
        """Names of a stream's channels: its own name, and `/1`, `/2` ... as far as they go without a gap."""
        found = self._named(stream)
        while found and len(found) < GROUP_PARTITIONS_MAX and (further := self._named(f"{stream}/{len(found)}")):
            found += further
        return found

    def _named(self, name: str) -> list[int]:
        channel_id = self._ids.get(name.lower())
        return [channel_id] if channel_id is not None and self._channels[channel_id].name == name else []


def wishes_of(members: Sequence[GroupMember], names: ChannelNames) -> Wishes:
    """The existing channels that the members want. Members that named the same are looked up once."""
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for member in members:
        alike.setdefault((member.channels, member.streams), []).append(member.member)
    wanted: dict[int, list[str]] = {}
    for (channels, streams), who in alike.items():
        ids = {channel_id for pattern in channels for channel_id in names.matching(pattern)}
        ids.update(channel_id for stream in streams for channel_id in names.partitions(stream))
        for channel_id in ids:
            wanted.setdefault(channel_id, []).extend(who)
    if len(alike) == 1:
        shared = tuple(sorted(next(iter(alike.values()))))
        return dict.fromkeys(wanted, shared)
    return {channel_id: tuple(sorted(who)) for channel_id, who in wanted.items()}


def assign(wishes: Wishes, held: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Assign the wanted channels. `held` names every member and its channels so far."""
    holder: dict[int, str] = {}
    for member in sorted(held):
        for channel_id in held[member]:
            if channel_id not in holder and member in wishes.get(channel_id, ()):
                holder[channel_id] = member
    load = dict.fromkeys(held, 0)
    for member in holder.values():
        load[member] += 1
    _give_out(wishes, holder, load)
    for _ in range(_SWEEPS_MAX):
        if not _even_out(wishes, holder, load):
            break
    shares: dict[str, list[int]] = {member: [] for member in held}
    for channel_id in sorted(holder):
        shares[holder[channel_id]].append(channel_id)
    return {member: tuple(share) for member, share in shares.items()}


def _give_out(wishes: Wishes, holder: dict[int, str], load: dict[str, int]) -> None:
    """Assign each free channel to the member that wants it and has the fewest channels, the first by name if equal."""
    heaps: dict[tuple[str, ...], list[tuple[int, str]]] = {}
    for channel_id in sorted(wishes):
        if channel_id in holder:
            continue
        who = wishes[channel_id]
        heap = heaps.get(who)
        if heap is None:
            heap = heaps[who] = [(load[member], member) for member in who]
            heapq.heapify(heap)
        # Loads only rise here, so an outdated entry is too low, and is corrected when it is popped.
        while load[heap[0][1]] != heap[0][0]:
            heapq.heapreplace(heap, (load[heap[0][1]], heap[0][1]))
        member = heap[0][1]
        holder[channel_id] = member
        load[member] += 1
        heapq.heapreplace(heap, (load[member], member))


def _even_out(wishes: Wishes, holder: dict[int, str], load: dict[str, int]) -> bool:
    """Look at every channel once, newest first; returns whether any had to move (GA2)."""
    least: dict[tuple[str, ...], str] = {}
    moved = False
    for channel_id in sorted(holder, reverse=True):
        who = wishes[channel_id]
        taker = least.get(who)
        if taker is None:
            taker = least[who] = min(who, key=lambda member: (load[member], member))
        giver = holder[channel_id]
        if load[giver] - load[taker] >= 2:
            holder[channel_id] = taker
            load[giver] -= 1
            load[taker] += 1
            least.clear()
            moved = True
    return moved
