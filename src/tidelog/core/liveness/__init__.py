"""Liveness without I/O: heartbeats between nodes, sessions with the metadata leader, the proximity graph.

Modules:

    config      The settings of liveness
    heartbeats  Heartbeats between a node and its peers
    measures    Round trip and peak throughput of a link
    messages    Heartbeats and session messages
    proximity   The proximity graph
    sessions    Sessions of nodes with the metadata leader
"""

# isort would give each of these names a statement of its own.
# ruff: noqa: I001

from __future__ import annotations

from tidelog.core.liveness.config import (
    CLAIMS_BYTES_MAX as CLAIMS_BYTES_MAX,
    HEARTBEAT_MS_MAX as HEARTBEAT_MS_MAX,
    HEARTBEAT_MS_MIN as HEARTBEAT_MS_MIN,
    NODES_MAX as NODES_MAX,
    LivenessConfig as LivenessConfig,
)
from tidelog.core.liveness.heartbeats import PairHeartbeats as PairHeartbeats, PairStatistics as PairStatistics
from tidelog.core.liveness.measures import PEAK_BYTES_PER_S_FIRST as PEAK_BYTES_PER_S_FIRST
from tidelog.core.liveness.messages import (
    Echo as Echo,
    Hearing as Hearing,
    HearingReport as HearingReport,
    Heartbeat as Heartbeat,
    Message as Message,
    RenewSession as RenewSession,
    SessionLost as SessionLost,
    SessionRefused as SessionRefused,
    SessionRenewed as SessionRenewed,
)
from tidelog.core.liveness.proximity import ProximityGraph as ProximityGraph
from tidelog.core.liveness.sessions import (
    SessionHolder as SessionHolder,
    Sessions as Sessions,
    SessionStatistics as SessionStatistics,
)
