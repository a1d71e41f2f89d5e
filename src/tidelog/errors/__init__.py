"""Every error that Tidelog raises on purpose.

An `AssertionError` means a bug in Tidelog; a `LogError` means the world did something, and its
message tells the reader what to do next. Callers decide by the class attributes, never by text:
`retriable` (the same request may succeed later) and `definite` (the operation certainly had no
effect; when unsure, False).

Import errors from here; the modules only group them for the reader.

Modules:

    base         The base of every error: its message, its fields, and the facts that callers decide by
    catalog      Errors of the catalog: refused changes, and catalog bytes that cannot be read
    channels     Errors of channels
    client       Errors that only a client of a cluster meets
    embedded     Errors that only embedded use raises
    gateways     Errors of NATS and the Liftbridge gateway
    groups       Errors of consumer groups
    identity     Errors of identity: certificates, names, authorities, and refused HTTP requests
    link         Errors of the link between nodes, and the form in which a client sees errors of a node
    pipeline     Errors of the pipeline
    raft         Errors of the metadata group: Raft, its storage, and its membership
    replication  Errors of the uplink, of messages, and of the sources of frames
    storage      Errors of configuration, records, stored bytes, the disk, logs, the store and the journal
"""

# isort would give each of these names a statement of its own.
# ruff: noqa: I001

from __future__ import annotations

from tidelog.errors.base import (
    LogError as LogError,
)
from tidelog.errors.catalog import (
    CatalogCorrupt as CatalogCorrupt,
    CatalogFull as CatalogFull,
    CatalogVersion as CatalogVersion,
    ConfigMismatch as ConfigMismatch,
    InvalidChange as InvalidChange,
    LastHolder as LastHolder,
    LeaderOutsideIsr as LeaderOutsideIsr,
    NodeExists as NodeExists,
    NodeFenced as NodeFenced,
    NodeHolds as NodeHolds,
    NoLiveLeader as NoLiveLeader,
    NotElectable as NotElectable,
    NothingToChange as NothingToChange,
    NotInIsr as NotInIsr,
    NotInReplicas as NotInReplicas,
    ProducerOwned as ProducerOwned,
    StaleChannelEpoch as StaleChannelEpoch,
    StaleIncarnation as StaleIncarnation,
    StaleProducerEpoch as StaleProducerEpoch,
    TokenExists as TokenExists,
    UnknownGrant as UnknownGrant,
    UnknownNode as UnknownNode,
    UnknownProducer as UnknownProducer,
    UnknownToken as UnknownToken,
)
from tidelog.errors.channels import (
    AccessDenied as AccessDenied,
    ChannelDeleted as ChannelDeleted,
    ChannelPaused as ChannelPaused,
    ChannelReadonly as ChannelReadonly,
    FactorNotMet as FactorNotMet,
    InvalidTransition as InvalidTransition,
    LeadershipLost as LeadershipLost,
    NoReplicaHere as NoReplicaHere,
    NotChannelLeader as NotChannelLeader,
    NotEnoughReplicas as NotEnoughReplicas,
    OffsetConflict as OffsetConflict,
    OutOfSequence as OutOfSequence,
    PlacementRefused as PlacementRefused,
    ProducerFenced as ProducerFenced,
    ProducerNotYetKnown as ProducerNotYetKnown,
    ReplicaBehind as ReplicaBehind,
    TooManyInFlight as TooManyInFlight,
    TooManyWaits as TooManyWaits,
    WrongCause as WrongCause,
)
from tidelog.errors.client import (
    ClientClosed as ClientClosed,
    CommittedLost as CommittedLost,
    OffsetTrimmed as OffsetTrimmed,
)
from tidelog.errors.embedded import (
    Lagged as Lagged,
    ReplicationNotEnabled as ReplicationNotEnabled,
    TransitionReserved as TransitionReserved,
    WithdrawnByHand as WithdrawnByHand,
)
from tidelog.errors.gateways import (
    BadEnvelope as BadEnvelope,
    BadSubject as BadSubject,
    PayloadTooSmall as PayloadTooSmall,
)
from tidelog.errors.groups import (
    MemberExists as MemberExists,
    MemberFenced as MemberFenced,
    NotAssigned as NotAssigned,
    NotGroupCoordinator as NotGroupCoordinator,
    StaleGroupEpoch as StaleGroupEpoch,
    UnknownGroup as UnknownGroup,
    UnknownMember as UnknownMember,
)
from tidelog.errors.identity import (
    AuthorityError as AuthorityError,
    BadIdentity as BadIdentity,
    BadRevocationList as BadRevocationList,
    CertificateExpired as CertificateExpired,
    CertificateNotYetValid as CertificateNotYetValid,
    CertificateRejected as CertificateRejected,
    CertificateRevoked as CertificateRevoked,
    CloudNotTrusted as CloudNotTrusted,
    NameTaken as NameTaken,
    RequestRefused as RequestRefused,
    TooManyNames as TooManyNames,
    WeakCertificate as WeakCertificate,
    WrongKind as WrongKind,
)
from tidelog.errors.link import (
    AddressTaken as AddressTaken,
    BadFrame as BadFrame,
    BodyTooLarge as BodyTooLarge,
    HandlerFailed as HandlerFailed,
    LinkBusy as LinkBusy,
    LinkClosed as LinkClosed,
    PeerRefused as PeerRefused,
    PeerUnreachable as PeerUnreachable,
    TlsFailed as TlsFailed,
    UnknownMethod as UnknownMethod,
    WrongCluster as WrongCluster,
    WrongPeer as WrongPeer,
    WrongVersion as WrongVersion,
)
from tidelog.errors.pipeline import (
    ChannelRecreated as ChannelRecreated,
    ChannelTaken as ChannelTaken,
    CheckpointAhead as CheckpointAhead,
    CheckpointForeign as CheckpointForeign,
    EngineMissing as EngineMissing,
    FolderNotShared as FolderNotShared,
    ForeignChange as ForeignChange,
    HistoryGone as HistoryGone,
    HistoryRewritten as HistoryRewritten,
    PositionMoved as PositionMoved,
    RebuildRefused as RebuildRefused,
    RecordsDamaged as RecordsDamaged,
    SinkRefused as SinkRefused,
    SourceChanged as SourceChanged,
    StageFailed as StageFailed,
    StageRefused as StageRefused,
    TableBusy as TableBusy,
    TableDiffers as TableDiffers,
    TableUnsupported as TableUnsupported,
    UpstreamReplaced as UpstreamReplaced,
)
from tidelog.errors.raft import (
    LeadershipMoving as LeadershipMoving,
    MembershipPending as MembershipPending,
    MembershipRefused as MembershipRefused,
    MetadataDamaged as MetadataDamaged,
    MetadataPoisoned as MetadataPoisoned,
    NotLeader as NotLeader,
    OutcomeUnknown as OutcomeUnknown,
    ProposalLost as ProposalLost,
    ProposalTooLarge as ProposalTooLarge,
    TooManyProposals as TooManyProposals,
    TooManyReads as TooManyReads,
)
from tidelog.errors.replication import (
    BadMessage as BadMessage,
    ConflictingFrames as ConflictingFrames,
    ForeignLineage as ForeignLineage,
    HolesLeft as HolesLeft,
    LagExceeded as LagExceeded,
    MissingExtra as MissingExtra,
    NameInUse as NameInUse,
    RateExceeded as RateExceeded,
    SessionFenced as SessionFenced,
    SourceFailed as SourceFailed,
    TooManyHoles as TooManyHoles,
)
from tidelog.errors.storage import (
    BadBlock as BadBlock,
    BadJournalFile as BadJournalFile,
    BlockCorrupt as BlockCorrupt,
    BlockTooLarge as BlockTooLarge,
    BlockTruncated as BlockTruncated,
    ChannelExists as ChannelExists,
    DamagedRange as DamagedRange,
    DiskError as DiskError,
    DiskFailed as DiskFailed,
    DiskFull as DiskFull,
    FileMissing as FileMissing,
    FolderLocked as FolderLocked,
    InvalidConfig as InvalidConfig,
    InvalidRecord as InvalidRecord,
    LogClosed as LogClosed,
    LogPoisoned as LogPoisoned,
    MemoryLogFull as MemoryLogFull,
    NotABlockBoundary as NotABlockBoundary,
    NotALog as NotALog,
    OffsetMismatch as OffsetMismatch,
    OffsetOutOfRange as OffsetOutOfRange,
    QueueFull as QueueFull,
    ReplacementRefused as ReplacementRefused,
    SeqExhausted as SeqExhausted,
    StaleEpoch as StaleEpoch,
    SyncFailed as SyncFailed,
    UnknownChannel as UnknownChannel,
    WaitTimedOut as WaitTimedOut,
)
