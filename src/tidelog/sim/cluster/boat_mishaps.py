"""What happens to the boats of a simulated cluster, to their links, and to the nodes that serve them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidelog.core.catalog import DeleteChannel, NodeState
from tidelog.sim.cluster.admin import _alter as alter
from tidelog.sim.cluster.boat import BoatConnection, ClusterBoat
from tidelog.sim.cluster.boats import ClusterBoats
from tidelog.sim.network import Way


def flap(boats: ClusterBoats, boat: ClusterBoat) -> None:
    """The link is gone for a while."""
    boat.link.weather.up = False
    boat.cut()

    def back() -> None:
        boat.link.weather.up = True

    boats.world.scheduler.after(boats.rng.choice((200, 1_000, 3_000)), back)


def blip(boats: ClusterBoats, boat: ClusterBoat) -> None:
    boat.cut()


def half_open(boats: ClusterBoats, boat: ClusterBoat) -> None:
    """One direction of the connection is dead, and nobody is told."""
    for connection in boat.link.connections:
        connection.swallowed.add(boats.rng.choice((Way.UP, Way.DOWN)))


def burst(boats: ClusterBoats, boat: ClusterBoat) -> None:
    boat.burst_frames = boats.rng.choice((20, 80))


def crash_boat(boats: ClusterBoats, boat: ClusterBoat) -> None:
    if boat.running:
        boat.power_cut()
        boats.world.scheduler.after(boats.rng.choice((100, 1_000, 4_000)), boat.open)


def restart_boat(boats: ClusterBoats, boat: ClusterBoat) -> None:
    if boat.running:
        boat.guarded(boat.stop)
        boats.world.scheduler.after(boats.rng.choice((100, 1_000)), boat.open)


def wipe_boat(boats: ClusterBoats, boat: ClusterBoat) -> None:
    if boat.running:
        boat.wipe()
        boats.world.scheduler.after(boats.rng.choice((100, 1_000)), boat.open)


def crash_node(boats: ClusterBoats, boat: ClusterBoat) -> None:
    """The node that has the boat's session dies."""
    connection = boat.connection
    if isinstance(connection, BoatConnection) and boats.rng.random() < 0.5:
        node = boats.world.nodes[connection.server[0]]
        (node.crash if boats.rng.random() < 0.5 else node.kill)()


def administer(boats: ClusterBoats, boat: ClusterBoat) -> None:
    """An operator changes the boat's channel: moves it, pauses it, makes it read-only."""
    node = boats.any_node()
    record = None if node is None else boats.record(node, boat.name)
    if node is None or record is None or node.core is None or node.core.catalog is None:
        return
    active = [known.node for known in node.core.catalog.nodes() if known.state is NodeState.ACTIVE]
    change = alter(boats.rng, record, active)
    if change is not None and not isinstance(change, DeleteChannel):
        boats.world.counters["boat_administered"] += 1
        boats.world.clients.change(node, change)


MISHAPS: Final[dict[str, tuple[int, Callable[[ClusterBoats, ClusterBoat], None]]]] = {
    "boat_flap": (4, flap),
    "boat_blip": (4, blip),
    "boat_half_open": (2, half_open),
    "boat_burst": (3, burst),
    "boat_crash": (2, crash_boat),
    "boat_restart": (1, restart_boat),
    "boat_wipe": (1, wipe_boat),
    "boat_channel_altered": (2, administer),
    "boat_node_crash": (2, crash_node),
}
"""Name to weight and what it does."""
