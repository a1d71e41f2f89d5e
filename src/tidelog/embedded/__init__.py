"""Tidelog inside a program, with the calls of seed 001: `LogManager`, `FileConfig`, `ReplicationConfig`.

docs/embedded.md shows them. `Redex`, `RedexFileConfig`, `RedexFile`, `PlacementStrategy` and `SyncNackError` are the
seed's own names for the same things.

Modules:

    chain_reader     Reading a replicated channel from any node that holds it
    coordinator      The handle of this node on one replicated channel
    local_file       A file on this node alone
    local_logs       The logs of a manager that are on this node alone
    log_file         An open channel, on this node alone or replicated
    manager          Opens and closes channels
    replicated_file  A file whose channel is replicated
    sync             The manager for programs without an event loop
"""

from __future__ import annotations

from tidelog.client.records import FrameRecord, Record
from tidelog.core.catalog import BandwidthClass, FsyncPolicy, UnderCapacity
from tidelog.core.replication.config import (
    ColocationStrict,
    FileConfig,
    Pinned,
    PlacementStrategy,
    ReplicationConfig,
    Standard,
)
from tidelog.core.replication.messages import SyncError
from tidelog.core.replication.metrics import ReplicationMetricsRegistry
from tidelog.core.replication.roles import Cause, Role
from tidelog.embedded.coordinator import ReplicationCoordinator, RoleChange
from tidelog.embedded.log_file import LogFile
from tidelog.embedded.manager import LogManager
from tidelog.embedded.sync import SyncLogFile, SyncLogManager

Redex = LogManager
RedexFile = LogFile
RedexFileConfig = FileConfig
SyncNackError = SyncError

__all__ = [
    "BandwidthClass",
    "Cause",
    "ColocationStrict",
    "FileConfig",
    "FrameRecord",
    "FsyncPolicy",
    "LogFile",
    "LogManager",
    "Pinned",
    "PlacementStrategy",
    "Record",
    "Redex",
    "RedexFile",
    "RedexFileConfig",
    "ReplicationConfig",
    "ReplicationCoordinator",
    "ReplicationMetricsRegistry",
    "Role",
    "RoleChange",
    "Standard",
    "SyncLogFile",
    "SyncLogManager",
    "SyncNackError",
    "UnderCapacity",
]
