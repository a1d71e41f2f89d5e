"""The native client of a Tidelog cluster: produce, read, fetch raw blocks, and administer channels.

`connect` is for programs that run on asyncio, `connect_sync` for all others; both offer the same names. docs/client.md
shows them. Nothing here needs pyarrow unless Arrow batches are asked for.
"""

from __future__ import annotations

from tidelog.blocks.header import Codec
from tidelog.client.admin import Created, Offsets
from tidelog.client.client import Client, connect
from tidelog.client.group import Group, Rebalance
from tidelog.client.group_feeds import GroupBatch
from tidelog.client.options import ClientOptions, GroupReaderOptions, ProducerOptions, ReaderOptions, Seq, Time
from tidelog.client.producer import Producer
from tidelog.client.reader import Reader
from tidelog.client.receipts import ManyReceipt, Receipt
from tidelog.client.records import FrameRecord, Record
from tidelog.client.sync import SyncClient, SyncGroup, SyncProducer, SyncReader, connect_sync
from tidelog.errors import ClientClosed, CommittedLost, OffsetTrimmed
from tidelog.wire.link_tls import LinkTls, LinkTlsFiles

__all__ = [
    "Client",
    "ClientClosed",
    "ClientOptions",
    "Codec",
    "CommittedLost",
    "Created",
    "FrameRecord",
    "Group",
    "GroupBatch",
    "GroupReaderOptions",
    "LinkTls",
    "LinkTlsFiles",
    "ManyReceipt",
    "OffsetTrimmed",
    "Offsets",
    "Producer",
    "ProducerOptions",
    "Reader",
    "ReaderOptions",
    "Rebalance",
    "Receipt",
    "Record",
    "Seq",
    "SyncClient",
    "SyncGroup",
    "SyncProducer",
    "SyncReader",
    "Time",
    "connect",
    "connect_sync",
]
