"""Making certificates. Where they are kept is decided elsewhere.

Time and serial numbers come from the caller. Keys are P-256: small, fast to sign on a boat's computer, and known to
every TLS library that lplex or gRPC is built with.

PCE1  An authority may sign leaves and nothing below them (path length 0), and may do nothing else.
PCE2  A leaf is no authority, says so, and names exactly one holder (I1), in its URI and its common name alike.
PCE3  A boat's, an operator's or a client's leaf is good for clients only; a node's for servers and clients.
PCE4  A leaf is valid from `BACKDATE_US` before it is made, for boats whose clocks are slow, and expires no later than
      its authority.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tidelog.errors import BadIdentity, InvalidConfig
from tidelog.pki.identity import Identity, Kind, is_fleet, is_name
from tidelog.units import US_PER_S

RandomBytes = Callable[[int], bytes]
"""`secrets.token_bytes`, or something a test can repeat."""

DAY_US = 86_400 * US_PER_S
BACKDATE_US = 300 * US_PER_S
DAYS_MAX = 36_500
SERVER_NAMES_MAX = 100

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SERIAL_BYTES = 20
_HOST = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)
_TREES: dict[Kind, str] = {"boat": "boats", "node": "nodes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityOptions:
    """The options of a new authority; the first two cannot be changed later."""

    kind: Kind
    fleet: str = "fleet"
    """Goes into every URI, so that two fleets' certificates are never mistaken for each other."""
    days: int = 3650

    def __post_init__(self) -> None:
        problems = []
        if not is_fleet(self.fleet):
            problems.append(f"{self.fleet!a} is not a fleet; use lower-case letters, digits, dots and dashes")
        if not 1 <= self.days <= DAYS_MAX:
            problems.append(f"days must be from 1 to {DAYS_MAX}")
        if problems:
            raise InvalidConfig(section="authority", problems=problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafOptions:
    """The options of one certificate."""

    identity: Identity
    server_names: Sequence[str] = ()
    """Host names and addresses under which clients will call; nodes only."""
    days: int = 730
    """Boats are out of reach for months, so longer than a web server's; a stolen one is revoked before it expires."""

    def __post_init__(self) -> None:
        if not is_name(self.identity.name):
            raise BadIdentity(
                problem=f"{self.identity.name!a} is not a name; use 1 to 63 letters, digits, dots, dashes and "
                "underscores, beginning with a letter or digit"
            )
        problems = []
        if not 1 <= self.days <= DAYS_MAX:
            problems.append(f"days must be from 1 to {DAYS_MAX}")
        if self.server_names and self.identity.kind != "node":
            holder = "an operator" if self.identity.kind == "operator" else f"a {self.identity.kind}"
            problems.append(f"{holder} serves nobody, so its certificate takes no server names")
        if len(self.server_names) > SERVER_NAMES_MAX:
            problems.append(f"{len(self.server_names)} server names are more than {SERVER_NAMES_MAX}")
        problems += [
            f"{name!a} is neither a host name nor an address (wildcards are not allowed)"
            for name in self.server_names
            if not _is_address(name) and _HOST.fullmatch(name) is None
        ]
        if problems:
            raise InvalidConfig(section="certificate", problems=problems)


@dataclass(frozen=True, slots=True)
class Signer:
    """An authority's certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def new_serial(random_bytes: RandomBytes) -> int:
    """Positive, at most 20 bytes as RFC 5280 wants, and never guessable."""
    return (int.from_bytes(random_bytes(_SERIAL_BYTES)) >> 1) | 1


def make_authority(options: AuthorityOptions, *, now_us: int, random_bytes: RandomBytes) -> Signer:
    """A self-signed authority (PCE1)."""
    key = new_key()
    tree = _TREES[options.kind]
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, options.fleet),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, tree),
            x509.NameAttribute(NameOID.COMMON_NAME, f"Tidelog {tree} authority"),
        ]
    )
    begins_us, ends_us = now_us - BACKDATE_US, now_us + options.days * DAY_US
    builder = _begun(name, name, key.public_key(), new_serial(random_bytes), begins_us, ends_us)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier(identifier.digest, None, None), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Signer(certificate, key)


def authority_options(certificate: x509.Certificate) -> AuthorityOptions | None:
    """Kind and fleet of an authority, from its own certificate; None if it is not one of ours."""
    units = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    fleets = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    kinds = [kind for kind, tree in _TREES.items() if [unit.value for unit in units] == [tree]]
    if len(kinds) != 1 or len(fleets) != 1 or not is_fleet(str(fleets[0].value)):
        return None
    return AuthorityOptions(kind=kinds[0], fleet=str(fleets[0].value))


def make_leaf(
    options: LeafOptions,
    *,
    signer: Signer,
    fleet: str,
    public_key: CertificatePublicKeyTypes,
    now_us: int,
    random_bytes: RandomBytes,
) -> x509.Certificate:
    """The certificate of a boat, a node, an operator or a client (PCE2, PCE3, PCE4)."""
    identity = options.identity
    authority = signer.certificate
    authority_ends_us = (authority.not_valid_after_utc - _EPOCH) // timedelta(microseconds=1)
    ends_us = min(now_us + options.days * DAY_US, authority_ends_us)
    names: list[x509.GeneralName] = [
        x509.UniformResourceIdentifier(f"spiffe://{fleet}/{identity.kind}/{identity.name}")
    ]
    names += [_server_name(name) for name in dict.fromkeys(options.server_names)]
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if identity.kind == "node":
        usages.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.name)])
    serial = new_serial(random_bytes)
    builder = _begun(subject, authority.subject, public_key, serial, now_us - BACKDATE_US, ends_us)
    authority_identifier = x509.SubjectKeyIdentifier.from_public_key(signer.key.public_key())
    return (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier(authority_identifier.digest, None, None), critical=False)
        .sign(signer.key, hashes.SHA256())
    )


def server_names_of(certificate: x509.Certificate) -> list[str]:
    """The host names and addresses in a certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    hosts = names.get_values_for_type(x509.DNSName)
    return [*hosts, *map(str, names.get_values_for_type(x509.IPAddress))]


def certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey, *, passphrase: bytes | None = None) -> bytes:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase is not None:
        encryption = serialization.BestAvailableEncryption(passphrase)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: CertificatePublicKeyTypes,
    serial: int,
    begins_us: int,
    ends_us: int,
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=public_key,
        serial_number=serial,
        not_valid_before=_moment(begins_us),
        not_valid_after=_moment(ends_us),
    )


def _moment(time_us: int) -> datetime:
    """To the second, which is all that a certificate can say."""
    return _EPOCH + timedelta(seconds=time_us // US_PER_S)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _server_name(name: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(name)) if _is_address(name) else x509.DNSName(name.lower())
