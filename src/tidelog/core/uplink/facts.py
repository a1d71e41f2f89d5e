"""Facts about a boat in its log, besides frames: the fold is computed from them (F1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tidelog.core.uplink.fold import ChannelFold


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    lineage: bytes
    head: int
    session: int
    boot_id: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLineage:
    lineage: bytes
    previous: bytes | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclareLost:
    lineage: bytes
    seqs: range
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclareVoid:
    lineage: bytes
    seqs: range


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseLineage:
    lineage: bytes
    reason: str


Fact: TypeAlias = OpenSession | OpenLineage | DeclareLost | DeclareVoid | CloseLineage


def apply_fact(fold: ChannelFold, fact: Fact) -> None:
    """What a control record means to the fold."""
    match fact:
        case OpenSession():
            fold.session_opened(fact.lineage, head=fact.head, session=fact.session, boot_id=fact.boot_id)
        case OpenLineage():
            fold.lineage_opened(fact.lineage)
        case DeclareLost():
            fold.lineage(fact.lineage).declare_lost(fact.seqs)
        case DeclareVoid():
            fold.lineage(fact.lineage).declare_void(fact.seqs)
        case CloseLineage():
            fold.lineage(fact.lineage).closed = True
