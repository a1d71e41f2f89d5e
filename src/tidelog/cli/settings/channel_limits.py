"""The settings of `tidelog node` that bound what clients may leave behind: channels and producers. The same on all
nodes, because whichever leads the metadata, or a channel, goes by its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tidelog.config import DURATION, INTEGER, Setting, under

if TYPE_CHECKING:
    from tidelog.cluster.node.core import NodeOptions

CHANNELS: Final = "Channels and producers"
_DAY_MS: Final = 24 * 3_600_000
CHANNEL_LIMIT_SETTINGS: Final = under(
    CHANNELS,
    Setting(
        "channels.max",
        "So many channels the cluster has at most; more are refused.",
        INTEGER,
        100_000,
        flag="max-channels",
        at_least=1,
    ),
    Setting(
        "channels.max-replicas-per-node",
        "So many replicas of channels a node holds at most; a channel that needs one more is refused.",
        INTEGER,
        25_000,
        flag="max-replicas-per-node",
        at_least=1,
    ),
    Setting(
        "producers.expiry",
        "A producer that wrote nothing for so long is closed; who uses it again opens it anew.",
        DURATION,
        7 * _DAY_MS,
        at_least=600_000,
    ),
)


def with_channel_limits(core: NodeOptions, values: dict[str, Any]) -> NodeOptions:
    replication = replace(
        core.replication,
        channels_max=values["max-channels"],
        replicas_per_node_max=values["max-replicas-per-node"],
        producer_expiry_ms=values["producers-expiry"],
    )
    return replace(core, replication=replication)
