"""The native client of a Tidelog cluster: produce, read, fetch raw blocks, and administer channels.

`connect` is for programs that run on asyncio, `connect_sync` for all others; both offer the same names. docs/client.md
shows them. Nothing here needs pyarrow unless Arrow batches are asked for.

Modules:

    admin       Administration of channels
    calls       Requests to any node or to a channel's leader, with retries
    client      The native client
    closing     The end of a loop in a thread of its own
    groups/     Consumer groups: membership, and feeds of the assigned channels
    links       Links of a client
    options     Settings of clients, producers, readers and group members
    producing/  Producing records: batches, sequence numbers, retries, receipts
    reading/    Reading committed records: fetches ahead, positions, the reader
    records     From verified blocks to records and Arrow batches
    retry       Whether to retry, and when
    routes      Leaders, replicas and addresses as the client knows them
    sync        The client for programs without an event loop
"""

from __future__ import annotations

from tidelog.blocks.header import Codec
from tidelog.client.admin import Created, Offsets
from tidelog.client.client import Client, connect
from tidelog.client.groups.feeds import GroupBatch
from tidelog.client.groups.group import Group, Rebalance
from tidelog.client.options import ClientOptions, GroupReaderOptions, ProducerOptions, ReaderOptions, Seq, Time
from tidelog.client.producing.producer import Producer
from tidelog.client.producing.receipts import ManyReceipt, Receipt
from tidelog.client.reading.reader import Reader
from tidelog.client.records import FrameRecord, Record
from tidelog.client.sync import SyncClient, SyncGroup, SyncProducer, SyncReader, connect_sync
from tidelog.errors import ClientClosed, CommittedLost, OffsetTrimmed
from tidelog.transports.link.tls import LinkTls, LinkTlsFiles

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
