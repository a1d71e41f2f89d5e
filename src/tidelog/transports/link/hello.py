"""The handshake of a link, and the bytes of a refusal.

The dialling side sends HELLO; the listening side checks it and answers with its own HELLO or with REFUSED; the dialling
side checks that and sends READY or REFUSED. Only then do messages flow. Nothing here does I/O.

LH1  The first 12 bytes of a HELLO (a mark and the versions) never change; the rest is read only in a common version,
     and what a newer version adds at its end is skipped.
LH2  A cluster id that both sides have must be the same. A blank one matches any: a node that joins has none yet.
LH3  A name in a HELLO counts only if the certificate has the same; without TLS (development) it is accepted.
LH4  A refusal has the code, message, `retriable` and `definite` of its error, within `REFUSAL_BYTES_MAX`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from typing import Final

from tidelog.errors import BadFrame, HandlerFailed, InvalidConfig, LogError, PeerRefused, WrongCluster, WrongVersion
from tidelog.pki.identity import Kind, is_name
from tidelog.transports.link.frames import CHUNK_BYTES_MAX
from tidelog.units import KIB, MIB

VERSION_MIN: Final = 1
VERSION_MAX: Final = 1
CLUSTER_BYTES: Final = 16
REFUSAL_BYTES_MAX: Final = 4 * KIB

_MARK: Final = b"TIDELINK"
_OPENING: Final = struct.Struct("<8sHH")
"""Mark, oldest and newest version."""
_FACTS: Final = struct.Struct("<BBBxQQIIII")
"""Kind, lengths of name and cluster, incarnation, process, then the limits in the order of `PeerLimits`."""
_REFUSAL: Final = struct.Struct("<BH")
"""Flags, length of the code."""
_KINDS: Final[tuple[Kind, ...]] = ("node", "operator", "client")
_RETRIABLE: Final = 1
_DEFINITE: Final = 2
_CODE_BYTES_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkIdentity:
    """This end's identity, as in the HELLO and confirmed by the certificate."""

    node: str
    cluster: bytes
    """16 bytes, or none of them before the node belongs to a cluster."""
    incarnation: int = 0

    def __post_init__(self) -> None:
        problems = []
        if not is_name(self.node):
            problems.append(f"{self.node!a} is not a name of a node")
        if len(self.cluster) not in (0, CLUSTER_BYTES):
            problems.append(f"a cluster id has {CLUSTER_BYTES} bytes, or none; this has {len(self.cluster)}")
        if not 0 <= self.incarnation < 2**64:
            problems.append("the incarnation must be from 0 to 2^64 - 1")
        if problems:
            raise InvalidConfig(section="link", problems=problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLimits:
    """The limits of one end; the other keeps to them."""

    body_bytes_max: int = 64 * MIB
    """The most bytes of one body."""
    transfers_max: int = 32
    """Large bodies in flight at once."""
    initial_credit: int = CHUNK_BYTES_MAX // 2
    """Bytes of each that may come before there is memory for the whole body."""
    requests_max: int = 256
    """Requests being worked on at once; more are refused."""

    def __post_init__(self) -> None:
        names = [one.name for one in fields(self)]
        problems = [f"{name} must be from 1 to 2^32 - 1" for name in names if not 0 < getattr(self, name) < 2**32]
        if problems:
            raise InvalidConfig(section="link", problems=problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkHello:
    kind: Kind
    identity: LinkIdentity
    process: int
    """A random number of the process: a different one means that everything open before is void."""
    limits: PeerLimits
    version_min: int = VERSION_MIN
    version_max: int = VERSION_MAX

    def encode(self) -> bytes:
        identity, limits = self.identity, self.limits
        name = identity.node.encode()
        opening = _OPENING.pack(_MARK, self.version_min, self.version_max)
        facts = _FACTS.pack(
            _KINDS.index(self.kind),
            len(name),
            len(identity.cluster),
            identity.incarnation,
            self.process,
            limits.body_bytes_max,
            limits.transfers_max,
            limits.initial_credit,
            limits.requests_max,
        )
        return opening + facts + name + identity.cluster


def decode_hello(body: memoryview) -> LinkHello:
    """Raises `WrongVersion` where there is none in common, before anything else is read (LH1)."""
    if len(body) < _OPENING.size:
        raise BadFrame(problem=f"a HELLO of {len(body)} bytes is too short")
    mark, version_min, version_max = _OPENING.unpack_from(body)
    if mark != _MARK:
        raise BadFrame(problem="a HELLO without its mark")
    if version_min > version_max or version_min > VERSION_MAX or version_max < VERSION_MIN:
        raise WrongVersion(ours=f"{VERSION_MIN} to {VERSION_MAX}", theirs=f"{version_min} to {version_max}")
    names = _OPENING.size + _FACTS.size
    if len(body) < names:
        raise BadFrame(problem=f"a HELLO of {len(body)} bytes is too short")
    kind, name_bytes, cluster_bytes, incarnation, process, *limits = _FACTS.unpack_from(body, _OPENING.size)
    cluster = names + name_bytes
    if kind >= len(_KINDS) or len(body) < cluster + cluster_bytes:
        raise BadFrame(problem="a HELLO that contradicts itself")
    try:
        identity = LinkIdentity(
            node=str(body[names:cluster], "ascii"),
            cluster=bytes(body[cluster : cluster + cluster_bytes]),
            incarnation=incarnation,
        )
        taken = PeerLimits(
            body_bytes_max=limits[0], transfers_max=limits[1], initial_credit=limits[2], requests_max=limits[3]
        )
    except (InvalidConfig, UnicodeDecodeError) as error:
        raise BadFrame(problem=f"a HELLO that makes no sense ({error})") from error
    return LinkHello(
        kind=_KINDS[kind],
        identity=identity,
        process=process,
        limits=taken,
        version_min=version_min,
        version_max=version_max,
    )


def require_same_cluster(ours: LinkIdentity, theirs: LinkIdentity) -> None:
    if ours.cluster and theirs.cluster and ours.cluster != theirs.cluster:
        raise WrongCluster(ours=ours.cluster.hex(), theirs=theirs.cluster.hex())


def encode_refusal(error: LogError) -> bytes:
    """An error as bytes (LH4); a message that is too long is cut."""
    code = error.code.encode()[:_CODE_BYTES_MAX]
    flags = _RETRIABLE * error.retriable | _DEFINITE * error.definite
    words = str(error).encode(errors="replace")[: REFUSAL_BYTES_MAX - _REFUSAL.size - len(code)]
    return _REFUSAL.pack(flags, len(code)) + code + words


def decode_refusal(body: memoryview) -> PeerRefused:
    if not _REFUSAL.size <= len(body) <= REFUSAL_BYTES_MAX:
        raise BadFrame(problem=f"a refusal of {len(body)} bytes")
    flags, code_bytes = _REFUSAL.unpack_from(body)
    words = _REFUSAL.size + code_bytes
    if code_bytes > _CODE_BYTES_MAX or words > len(body):
        raise BadFrame(problem="a refusal that contradicts itself")
    return PeerRefused(
        code=str(body[_REFUSAL.size : words], "ascii", "replace"),
        message=str(body[words:], "utf-8", "replace"),
        retriable=bool(flags & _RETRIABLE),
        definite=bool(flags & _DEFINITE),
    )


def as_typed(error: Exception, kind: int) -> LogError:
    """The refusal for a handler's exception: a typed error as it is, of any other only its name."""
    return error if isinstance(error, LogError) else HandlerFailed(kind=kind, problem=type(error).__name__)
