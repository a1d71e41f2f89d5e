"""Settings of clients, producers, readers and group members. Everything has a limit, and every limit a default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Final, NamedTuple, TypeAlias

from tidelog.blocks.header import DEFAULT_LIMITS, Codec
from tidelog.core.client_messages import AckPolicy
from tidelog.errors import InvalidConfig
from tidelog.transports.link.events import LinkOptions
from tidelog.units import KIB, MIB

ACKS: Final = {"all": AckPolicy.ALL, "leader": AckPolicy.LEADER, "none": AckPolicy.NONE}
BLOCK_BYTES_MAX: Final = DEFAULT_LIMITS.raw_bytes_max - 64 * KIB
"""The most string bytes of one block: the limit of a block, less room for its columns."""
RECORDS_MAX: Final = DEFAULT_LIMITS.records_max


class Time(NamedTuple):
    """Start at the first record at or after this time, in microseconds since 1970."""

    time_us: int


class Seq(NamedTuple):
    """Start at the first record at or after this seq, of one lineage (32 hex digits) or of the newest."""

    seq: int
    lineage: str | None = None


Start: TypeAlias = str | int | Time | Seq
"""Where a reader begins: "earliest", "latest", an offset, a time or a seq."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The settings of one client. The defaults suit a data centre and a slow mobile link alike."""

    timeout_ms: int = 30_000
    """Every call ends within it, unless the call says otherwise."""
    attempt_ms: int = 2_000
    """A node that does not answer a request within it is avoided for a while."""
    commit_ms: int = 10_000
    """The same for changes that the metadata must commit before they are answered."""
    backoff_first_ms: int = 20
    backoff_max_ms: int = 1_000
    suspect_ms: int = 400
    """If a produce has no answer for this long, other nodes are asked whether the leader still leads."""
    poll_ms: int = 200
    """How often they are asked."""
    fetch_bytes_max: int = 4 * MIB
    """The most bytes of one answer."""
    fetch_wait_ms: int = 500
    """How long a node may wait for a record before it answers without any."""
    fetch_grace_ms: int = 1_000
    """How much longer an answer to a fetch may take; doubled after each that was too late, for slow links."""
    nearest_ms: int = 300
    """How long distances to replicas may be measured before one is chosen."""
    link: LinkOptions = field(default_factory=LinkOptions)

    def __post_init__(self) -> None:
        names = [one.name for one in fields(self) if one.name != "link"]
        problems = [f"{name} must be positive" for name in names if getattr(self, name) <= 0]
        if self.backoff_max_ms < self.backoff_first_ms:
            problems.append("backoff_max_ms must not be below backoff_first_ms")
        if problems:
            raise InvalidConfig(section="client", problems=problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """The settings of one producer."""

    name: str | None = None
    """The name that identifies a producer after a restart; opening it fences the earlier process. None: a random
    one."""
    acks: str = "all"
    linger_ms: int = 0
    """How long to wait for more records. 0: records that gathered while requests were in flight leave at once."""
    batch_bytes_max: int = MIB
    """The most bytes of the records of one block."""
    batch_records_max: int = 1 << 16
    in_flight_max_bytes: int = 64 * MIB
    """The most bytes that are gathered and unanswered. Beyond it `send` raises `QueueFull`, and `send_room` waits."""
    requests_max: int = 4
    """Blocks in flight at once. More makes blocks smaller, not faster, unless the round trip is long."""
    codec: Codec = Codec.NONE
    timeout_ms: int | None = None
    """From `send` to the answer; None: the client's timeout."""
    channel_id: int | None = None
    """Write to this channel and no other of its name."""
    on_paused: Callable[[], None] | None = None
    """Called when a block that may be in the log waits for its paused channel to be resumed, perhaps more than once.
    Without it such records end with `OutcomeUnknown`."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be positive"
            for name in ("batch_bytes_max", "batch_records_max", "in_flight_max_bytes", "requests_max")
            if getattr(self, name) <= 0
        ]
        if self.acks not in ACKS:
            problems.append(f"acks is {self.acks!r}; choose {', '.join(ACKS)}")
        if self.linger_ms < 0:
            problems.append("linger_ms must not be negative")
        if self.timeout_ms is not None and self.timeout_ms <= 0:
            problems.append("timeout_ms must be positive")
        if self.batch_bytes_max > BLOCK_BYTES_MAX:
            problems.append(f"batch_bytes_max must be at most {BLOCK_BYTES_MAX}")
        if self.batch_records_max > RECORDS_MAX:
            problems.append(f"batch_records_max must be at most {RECORDS_MAX}")
        if problems:
            raise InvalidConfig(section="producer", problems=problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """The settings of one reader."""

    start: Start = "earliest"
    follow: bool = True
    """False: end at the committed end of the moment when the reader began."""
    nearest: bool = False
    """Read from the nearest in-sync replica instead of the leader: cheaper, and a few milliseconds later."""
    on_trim: str = "raise"
    """"raise" `OffsetTrimmed` when retention has removed the reader's position, or "skip" to what is left."""
    cursor: str | None = None
    """Start at the cursor of this name, and save it as records are read."""
    cursor_interval_ms: int = 1_000
    bytes_max: int | None = None
    """The most bytes of one answer; None: the client's limit."""
    on_recreate: str = "raise"
    """"raise" `ChannelRecreated` when the channel was deleted and created again while it was read, or "restart" at the
    earliest record of the new one."""
    channel_id: int | None = None
    """Read this channel and no other of its name."""

    def __post_init__(self) -> None:
        problems = []
        if self.on_recreate not in ("raise", "restart"):
            problems.append(f'on_recreate is {self.on_recreate!r}; choose "raise" or "restart"')
        if isinstance(self.start, str) and self.start not in ("earliest", "latest"):
            problems.append(f'start is {self.start!r}; choose "earliest", "latest", an offset, Time(us) or Seq(n)')
        if isinstance(self.start, int) and self.start < 0:
            problems.append(f"start is {self.start}; offsets count from 0")
        if self.on_trim not in ("raise", "skip"):
            problems.append(f'on_trim is {self.on_trim!r}; choose "raise" or "skip"')
        if self.cursor_interval_ms <= 0:
            problems.append("cursor_interval_ms must be positive")
        if self.bytes_max is not None and not 0 < self.bytes_max < 2**32:
            problems.append("bytes_max must be from 1 to 2^32 - 1")
        if problems:
            raise InvalidConfig(section="reader", problems=problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReaderOptions:
    """The settings of one member of a consumer group."""

    channels: tuple[str, ...]
    """Names, and prefixes with a star: `boats/*`."""
    member: str | None = None
    """The name of the member; a process that joins under it again fences the earlier one. None: a random one."""
    start: str = "earliest"
    """In a channel where the group has no position yet: "earliest" or "latest"."""
    commit: str = "after"
    """"after": a batch is committed once the caller asks for the next; "explicit": only by `commit`."""
    commit_interval_ms: int = 1_000
    on_trim: str = "raise"
    """As in `ReaderOptions`."""
    fetches_max: int = 32
    """How many channels are fetched at once, and how many batches wait for the caller. With more channels than that,
    those without new records are checked in turn."""
    idle_ms: int = 200
    """How long until such a channel is checked again."""
    bytes_max: int = MIB
    """The most bytes of one answer."""

    def __post_init__(self) -> None:
        problems = [] if self.channels else ["name at least one channel, or the beginning of names and a star"]
        if self.start not in ("earliest", "latest"):
            problems.append(f'start is {self.start!r}; choose "earliest" or "latest"')
        if self.commit not in ("after", "explicit"):
            problems.append(f'commit is {self.commit!r}; choose "after" or "explicit"')
        if self.on_trim not in ("raise", "skip"):
            problems.append(f'on_trim is {self.on_trim!r}; choose "raise" or "skip"')
        for name in ("commit_interval_ms", "fetches_max", "idle_ms", "bytes_max"):
            if getattr(self, name) <= 0:
                problems.append(f"{name} must be positive")
        if problems:
            raise InvalidConfig(section="group", problems=problems)
