"""The holder that a certificate names.

TLS proves that the holder owns the certificate and that a trusted authority signed it. Everything else is decided here,
from the certificate alone, and the same way on every call: no function reads a clock or a file. What a caller must
keep: check on every RPC, and never use a name from another source.

I1  A certificate has one name or none. Two common names, two URIs, or a URI and a common name that differ are refused,
    because two readers could each use a different one.
I2  The URI `spiffe://<fleet>/boat|node|operator|client/<name>` decides. A certificate without a URI is a boat's and its
    common name decides, as lplex issues them; so nothing without a URI can ever be any of the others.
I3  A name is `[A-Za-z0-9][A-Za-z0-9._-]{0,62}`, compared byte for byte: no path, no wildcard, no look-alike.
I4  Two names that differ only in case are not both accepted: they would be one folder on some disks.
I5  An authority's own certificate, a forgeable signature or a short key identifies no holder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.x509.oid import NameOID

from tidelog.errors import (
    BadIdentity,
    CertificateExpired,
    CertificateNotYetValid,
    NameTaken,
    TooManyNames,
    WeakCertificate,
    WrongKind,
)
from tidelog.units import format_time_us

Kind = Literal["boat", "node", "operator", "client"]
"""An operator is a person or a tool that reads over HTTP and runs `tidelog cluster`; a client is an application that
may do what its grants allow, over the link or through a gateway. Neither may use the uplink."""

CERTIFICATE_BYTES_MAX = 64 * 1024
"""The size limit of one certificate or a chain of them. Tidelog's take about 1 KiB."""
NAMES_MAX = 100_000
RSA_BITS_MIN = 2048
CURVE_BITS_MIN = 256
DIGEST_BYTES_MIN = 32

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_FLEET = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_URI = re.compile(r"spiffe://([^/]*)/([^/]*)/([^/]*)")
_PEM_MARK = b"-----BEGIN "
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Everything that a hostile certificate makes the parser raise. A common name of a forbidden length is only a warning
# there, which becomes an exception where Python runs with -W error.
_UNREADABLE = (
    ValueError,
    TypeError,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
    UserWarning,
)


@dataclass(frozen=True, slots=True)
class Identity:
    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def is_name(text: str) -> bool:
    """Whether this may be the name of a boat or a node (I3)."""
    return _NAME.fullmatch(text) is not None


def is_fleet(text: str) -> bool:
    """Whether this may be the name of a fleet: as a name, in lower case."""
    return _FLEET.fullmatch(text) is not None


def parse_certificate(data: bytes) -> x509.Certificate:
    """One certificate from PEM or DER; of a PEM chain the first, which is the holder's in TLS."""
    if len(data) > CERTIFICATE_BYTES_MAX:
        raise BadIdentity(problem=f"a certificate of {len(data)} bytes is over the limit of {CERTIFICATE_BYTES_MAX}")
    try:
        return x509.load_pem_x509_certificate(data) if _PEM_MARK in data else x509.load_der_x509_certificate(data)
    except (*_UNREADABLE, UnsupportedAlgorithm) as error:
        raise BadIdentity(problem=f"these bytes are not a certificate: {_one_line(error)}") from error


def identity_of(certificate_pem_or_der: bytes, *, fleet: str | None = None) -> Identity:
    """The holder of this certificate; with `fleet`, one whose URI names another fleet is refused."""
    return identity_of_certificate(parse_certificate(certificate_pem_or_der), fleet=fleet)


def identity_of_certificate(certificate: x509.Certificate, *, fleet: str | None = None) -> Identity:
    """The same for a certificate that is parsed already."""
    _refuse_weak(certificate)
    try:
        uris, is_authority = _extension_facts(certificate)
        common_names = [
            attribute.value for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        ]
    except _UNREADABLE as error:
        raise BadIdentity(problem=f"the certificate cannot be read: {_one_line(error)}") from error
    if is_authority:
        raise BadIdentity(problem="this is an authority's certificate, not a boat's or a node's")
    if len(uris) > 1:
        raise BadIdentity(problem=f"the certificate has {len(uris)} URIs; one says who it is")
    if len(common_names) > 1:
        raise BadIdentity(problem=f"the certificate has {len(common_names)} common names; one says who it is")
    common_name = common_names[0] if common_names else None
    if not uris:
        return _from_common_name(common_name)
    identity = _from_uri(uris[0], fleet=fleet)
    if common_name is not None and common_name != identity.name:
        raise BadIdentity(
            problem=f"the certificate's URI says {identity.name} but its common name {_shown(common_name)}"
        )
    return identity


def require_kind(identity: Identity, kind: Kind) -> None:
    """A boat's certificate is not accepted where a node's is needed, nor the other way round."""
    if identity.kind != kind:
        raise WrongKind(name=identity.name, kind=identity.kind, needed=kind)


def require_valid_at(certificate: x509.Certificate, now_us: int) -> None:
    """TLS checks this too, but the peer only gets "handshake failed"; this tells a wrong clock from an old file."""
    begins_us, ends_us = validity_us(certificate)
    facts = {"subject": _subject(certificate), "now": format_time_us(now_us)}
    if now_us < begins_us:
        raise CertificateNotYetValid(begins=format_time_us(begins_us), **facts)
    if now_us > ends_us:
        raise CertificateExpired(expired=format_time_us(ends_us), **facts)


def validity_us(certificate: x509.Certificate) -> tuple[int, int]:
    """First and last moment of a certificate, in microseconds since 1970."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return (begins - _EPOCH) // timedelta(microseconds=1), (ends - _EPOCH) // timedelta(microseconds=1)


def serial_hex(serial: int) -> str:
    """A serial number as every file and message of ours writes it."""
    return f"{serial:x}"


class NameRegistry:
    """The known names, and a refusal of any that differs from one of them only in case (I4)."""

    def __init__(self, names: Iterable[str] = (), *, names_max: int = NAMES_MAX) -> None:
        self._spellings: dict[str, str] = {}
        self._names_max = names_max
        for name in names:
            self.admit(name)

    def __contains__(self, name: str) -> bool:
        return self._spellings.get(name.lower()) == name

    def __len__(self) -> int:
        return len(self._spellings)

    def check(self, name: str) -> None:
        """Raise what `admit` would raise, and remember nothing."""
        if not is_name(name):
            raise BadIdentity(problem=_bad_name(name))
        held = self._spellings.get(name.lower())
        if held is None and len(self._spellings) >= self._names_max:
            raise TooManyNames(names_max=self._names_max)
        if held is not None and held != name:
            raise NameTaken(name=name, held=held, remedy="names that differ only in case are not both allowed")

    def admit(self, name: str) -> None:
        """Remember a name; a known one is fine."""
        self.check(name)
        self._spellings[name.lower()] = name

    def forget(self, name: str) -> None:
        if name in self:
            del self._spellings[name.lower()]


def _extension_facts(certificate: x509.Certificate) -> tuple[list[str], bool]:
    """The URIs of a certificate, and whether it is an authority's."""
    extensions = certificate.extensions
    uris: list[str] = []
    is_authority = False
    for extension in extensions:
        value = extension.value
        if isinstance(value, x509.SubjectAlternativeName):
            uris += value.get_values_for_type(x509.UniformResourceIdentifier)
        elif isinstance(value, x509.BasicConstraints):
            is_authority = value.ca
    return uris, is_authority


def _from_common_name(common_name: str | bytes | None) -> Identity:
    if common_name is None:
        raise BadIdentity(problem="the certificate names nobody: it has neither a URI nor a common name")
    if not isinstance(common_name, str) or not is_name(common_name):
        raise BadIdentity(problem=_bad_name(common_name))
    return Identity(kind="boat", name=common_name)


def _from_uri(uri: str, *, fleet: str | None) -> Identity:
    match = _URI.fullmatch(uri)
    if match is None or not is_fleet(match[1]):
        raise BadIdentity(problem=f"the URI {_shown(uri)} is not of the form spiffe://<fleet>/boat/<name>")
    if fleet is not None and match[1] != fleet:
        raise BadIdentity(problem=f"the certificate is of fleet {match[1]}, not of {fleet}")
    if not is_name(match[3]):
        raise BadIdentity(problem=_bad_name(match[3]))
    if match[2] == "boat":
        return Identity(kind="boat", name=match[3])
    if match[2] == "node":
        return Identity(kind="node", name=match[3])
    if match[2] == "operator":
        return Identity(kind="operator", name=match[3])
    if match[2] == "client":
        return Identity(kind="client", name=match[3])
    raise BadIdentity(problem=f"the URI {_shown(uri)} is no boat's, node's, operator's or client's")


def _refuse_weak(certificate: x509.Certificate) -> None:
    try:
        digest = certificate.signature_hash_algorithm
        key = certificate.public_key()
    except (*_UNREADABLE, UnsupportedAlgorithm) as error:
        raise WeakCertificate(problem=f"the certificate's key or signature is unusable: {_one_line(error)}") from error
    if isinstance(key, rsa.RSAPublicKey):
        strong = key.key_size >= RSA_BITS_MIN
    elif isinstance(key, ec.EllipticCurvePublicKey):
        strong = key.curve.key_size >= CURVE_BITS_MIN
    else:
        strong = isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey)
    if not strong:
        raise WeakCertificate(problem="the certificate's key is too weak; use P-256, or RSA of 2048 bits or more")
    # Ed25519 and Ed448 signatures name no digest.
    if digest is not None and digest.digest_size < DIGEST_BYTES_MIN:
        raise WeakCertificate(problem=f"the certificate is signed with {digest.name}; issue it anew with SHA-256")


def _subject(certificate: x509.Certificate) -> str:
    try:
        return str(identity_of_certificate(certificate))
    except BadIdentity:
        return f"serial {serial_hex(certificate.serial_number)}"


def _bad_name(name: str | bytes) -> str:
    return (
        f"{_shown(name)} is not a name; use 1 to 63 letters, digits, dots, dashes and underscores, "
        "beginning with a letter or digit"
    )


def _shown(text: str | bytes) -> str:
    """Foreign text for a message: escaped, and short even when it is not."""
    return ascii(text if len(text) <= 80 else text[:80])


def _one_line(error: Exception) -> str:
    return ascii(" ".join(str(error).split())[:200])[1:-1]
