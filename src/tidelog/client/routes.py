"""What a client knows of the cluster: the leaders and replicas of channels, and the addresses of nodes.

Nothing here does I/O. The input are answers to DESCRIBE and refusals that name a leader; they may be old, since any
node may have sent them.

CRO1  Facts of an older leader epoch or channel epoch never replace newer ones of the same channel.
CRO2  A channel of the same name with a larger id is another channel: it replaces the deleted one.
CRO3  A channel that a node reported as deleted is not learned again from a node that has not heard of that yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tidelog.errors import BadMessage, NotChannelLeader

_DELETED_MAX: Final = 10_000
"""Names whose deletion is remembered; forgetting one costs a few more requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRoute:
    """The nodes that serve one channel."""

    channel_id: int
    name: str
    leader: str | None
    leader_epoch: int
    channel_epoch: int
    replicas: tuple[str, ...] = ()
    isr: tuple[str, ...] = ()
    unclean_epoch: int = 0
    """The epoch of the newest unclean election: records committed before it may be gone (P1)."""


class Routes:
    """The routes of all channels that this client uses."""

    def __init__(self, bootstrap: Sequence[str]) -> None:
        self.bootstrap = list(dict.fromkeys(bootstrap))
        self.addresses: dict[str, str] = {}
        """Addresses of nodes, by name."""
        self._channels: dict[str, ChannelRoute] = {}
        self._deleted: dict[str, int] = {}
        """The largest id of each name that was deleted (CRO3); the oldest name first."""

    def channel(self, name: str) -> ChannelRoute | None:
        return self._channels.get(name)

    def forget(self, name: str) -> None:
        """The channel was deleted, or its known route failed."""
        self._channels.pop(name, None)

    def deleted(self, name: str, channel_id: int) -> None:
        """A node reports that this channel is deleted for good; one of its name may exist."""
        known = self._channels.get(name)
        if known is not None and known.channel_id <= channel_id:
            del self._channels[name]
        self._deleted[name] = max(channel_id, self._deleted.pop(name, 0))
        if len(self._deleted) > _DELETED_MAX:
            del self._deleted[next(iter(self._deleted))]

    def believe(self, names: Iterable[str]) -> None:
        """The next description comes from a node that has caught up: it counts, whatever was reported before."""
        for name in names:
            self._deleted.pop(name, None)

    def described(self, answer: Mapping[str, Any]) -> None:
        """Take an answer to DESCRIBE; nonsense in it is `BadMessage`."""
        try:
            addresses = {
                str(node["node"]): str(node["addresses"]["link"])
                for node in answer["nodes"]
                if node["state"] == "active" and node["addresses"].get("link")
            }
            channels = [_route(plain) for plain in answer["channels"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadMessage(problem=f"a description of the cluster cannot be read: {error!r}") from error
        self.addresses.update(addresses)
        for route in channels:
            self.learn(route)

    def learn(self, route: ChannelRoute) -> None:
        if route.channel_id <= self._deleted.get(route.name, 0):
            return  # CRO3
        known = self._channels.get(route.name)
        if known is not None:
            if route.channel_id < known.channel_id:
                return  # CRO2
            epochs = (route.leader_epoch, route.channel_epoch)
            if route.channel_id == known.channel_id and epochs < (known.leader_epoch, known.channel_epoch):
                return  # CRO1
        self._channels[route.name] = route

    def moved(self, name: str, error: NotChannelLeader) -> bool:
        """A node names the leader; returns whether that was new."""
        known = self._channels.get(name)
        if error.leader is None or known is None or error.leader_epoch <= known.leader_epoch:
            return False
        if error.address:
            self.addresses[error.leader] = error.address
        if error.leader not in self.addresses:
            return False
        self._channels[name] = replace(known, leader=error.leader, leader_epoch=error.leader_epoch)
        return True


def _route(plain: Mapping[str, Any]) -> ChannelRoute:
    leader = plain["leader"]
    return ChannelRoute(
        channel_id=int(plain["channel_id"]),
        name=str(plain["name"]),
        leader=None if leader is None else str(leader),
        leader_epoch=int(plain["leader_epoch"]),
        channel_epoch=int(plain["channel_epoch"]),
        replicas=tuple(map(str, plain["replicas"])),
        isr=tuple(map(str, plain["isr"])),
        unclean_epoch=max((int(election["leader_epoch"]) for election in plain["unclean"]), default=0),
    )
