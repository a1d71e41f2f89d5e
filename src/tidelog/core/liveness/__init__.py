"""Liveness without I/O: heartbeats between nodes, sessions with the metadata leader, the proximity graph.

Modules:

    config      The settings of liveness
    heartbeats  Heartbeats between a node and its peers
    measures    Round trip and peak throughput of a link
    messages    Heartbeats and session messages
    proximity   The proximity graph
    sessions    Sessions of nodes with the metadata leader
"""

from __future__ import annotations

from tidelog.core.liveness.config import (
    CLAIMS_BYTES_MAX,
    HEARTBEAT_MS_MAX,
    HEARTBEAT_MS_MIN,
    NODES_MAX,
    LivenessConfig,
)
from tidelog.core.liveness.heartbeats import PairHeartbeats, PairStatistics
from tidelog.core.liveness.measures import PEAK_BYTES_PER_S_FIRST
from tidelog.core.liveness.messages import (
    Echo,
    Hearing,
    HearingReport,
    Heartbeat,
    Message,
    RenewSession,
    SessionLost,
    SessionRefused,
    SessionRenewed,
)
from tidelog.core.liveness.proximity import ProximityGraph
from tidelog.core.liveness.sessions import SessionHolder, Sessions, SessionStatistics

__all__ = [
    "CLAIMS_BYTES_MAX",
    "HEARTBEAT_MS_MAX",
    "HEARTBEAT_MS_MIN",
    "NODES_MAX",
    "PEAK_BYTES_PER_S_FIRST",
    "Echo",
    "Hearing",
    "HearingReport",
    "Heartbeat",
    "LivenessConfig",
    "Message",
    "PairHeartbeats",
    "PairStatistics",
    "ProximityGraph",
    "RenewSession",
    "SessionHolder",
    "SessionLost",
    "SessionRefused",
    "SessionRenewed",
    "SessionStatistics",
    "Sessions",
]
