"""Who calls the uplink: a boat by its own certificate, or a node that passes a boat's call on.

What a caller must keep: ask on every RPC.

UY1  A boat is who its verified certificate says. What a call claims counts only with `insecure_dev`, which serves
     plaintext for tests.
UY2  A boat's name in the call's metadata is believed of nodes alone (U2): of a certificate of kind node that the nodes'
     own authority signed; with `insecure_dev` of a caller on this machine.
UY3  What was passed on once is not passed on again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from tidelog.cluster.uplink.refusals import DETAIL_CHARACTERS_MAX, UplinkRefusedError
from tidelog.core.uplink.messages import Refused
from tidelog.errors import BadIdentity, LogError
from tidelog.pki.identity import identity_of_certificate, is_name, parse_certificate, require_kind
from tidelog.pki.revocation import RevocationList
from tidelog.pki.tls_files import read_pem
from tidelog.storage.log.writer import wall_clock_us

PASSED_ON: Final = "x-tidelog-boat"
"""Metadata of a call that a node passes on: the boat's verified name."""
PASSED_SERIALS: Final = "x-tidelog-serials"
_SERIALS_MAX: Final = 16
_SERIAL_BITS_MAX: Final = 160
_PEM_END: Final = b"-----END CERTIFICATE-----"
_CHAIN_MAX: Final = 10
_LOOPBACK: Final = ("ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D", "unix:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    boat: str
    serials: tuple[int, ...] = ()
    """Serial numbers of its certificate and of those up to the authority; none in insecure development."""
    is_passed_on: bool = False


class UplinkIdentity:
    def __init__(
        self,
        *,
        insecure_dev: bool = False,
        fleet: str | None = None,
        revocations: RevocationList | None = None,
        node_authority: Path | None = None,
        node_revocations: RevocationList | None = None,
    ) -> None:
        """`node_authority` signs nodes; without it nobody passes calls on."""
        self.insecure_dev = insecure_dev
        self._fleet = fleet
        self._revocations = revocations
        self._node_authority = node_authority
        self._node_revocations = node_revocations

    def of(self, context: Any, *, claimed: str | None = None) -> Caller:
        """Raises a typed refusal if the caller proves no identity."""
        facts = context.auth_context()
        certificates = facts.get("x509_pem_cert", ())
        passed_on = metadata_of(context, PASSED_ON)
        if certificates:
            certificate = parse_certificate(certificates[0])
            identity = identity_of_certificate(certificate, fleet=self._fleet)
            if passed_on:
                require_kind(identity, "node")
                self._require_node(certificate)
                return self._passed_on(context, passed_on)
            require_kind(identity, "boat")
            chain = [parse_certificate(data).serial_number for data in _each_pem(facts.get("x509_pem_cert_chain", ()))]
            serials = (certificate.serial_number, *chain)
            self.require_good(serials)
            return Caller(boat=identity.name, serials=serials)
        if not self.insecure_dev or list(facts.get("transport_security_type", ())) != [b"insecure"]:
            detail = "no client certificate; every boat shows its own"
            raise UplinkRefusedError(Refused(session=0, code="no_certificate", detail=detail))
        if passed_on:
            if not context.peer().startswith(_LOOPBACK):
                raise BadIdentity(problem="in insecure development only this machine passes calls on")
            return self._passed_on(context, passed_on)
        if claimed is None:
            claimed = metadata_of(context, "x-instance-id")
        return Caller(boat=_name(claimed))

    def _passed_on(self, context: Any, boat: str) -> Caller:
        texts = metadata_of(context, PASSED_SERIALS).split(",")[:_SERIALS_MAX]
        try:
            serials = tuple(int(text, 16) for text in texts if text)
        except ValueError as error:
            raise BadIdentity(problem="the serial numbers that were passed on are none") from error
        if any(not 0 <= serial < 1 << _SERIAL_BITS_MAX for serial in serials):
            raise BadIdentity(problem="the serial numbers that were passed on are none")
        self.require_good(serials)
        return Caller(boat=_name(boat), serials=serials, is_passed_on=True)

    def _require_node(self, certificate: x509.Certificate) -> None:
        """UY2: boats have an authority of their own, which has no say about nodes."""
        if self._node_authority is None or not _is_signed_by(certificate, read_pem(self._node_authority)):
            raise BadIdentity(problem="the nodes' authority has not signed this certificate")
        if self._node_revocations is not None:
            self._node_revocations.require_good(certificate.serial_number, wall_clock_us())

    def require_good(self, serials: Iterable[int]) -> None:
        """Raise if a certificate has been revoked."""
        if self._revocations is not None:
            for serial in serials:
                self._revocations.require_good(serial, wall_clock_us())


def passed_on(caller: Caller) -> list[tuple[str, str]]:
    """The metadata by which a node passes a verified boat on."""
    return [(PASSED_ON, caller.boat), (PASSED_SERIALS, ",".join(f"{serial:x}" for serial in caller.serials))]


def metadata_of(context: Any, key: str) -> str:
    value = dict(context.invocation_metadata() or ()).get(key, "")
    return value if isinstance(value, str) else ""


def _name(claimed: str) -> str:
    if not is_name(claimed):
        raise BadIdentity(problem=f"{claimed[:DETAIL_CHARACTERS_MAX]!a} is not a name for a boat")
    return claimed


def _is_signed_by(certificate: x509.Certificate, authorities: bytes) -> bool:
    for pem in _each_pem([authorities]):
        try:
            certificate.verify_directly_issued_by(parse_certificate(pem))
        except (InvalidSignature, ValueError, TypeError, LogError):
            continue
        return True
    return False


def _each_pem(chain: Sequence[bytes]) -> list[bytes]:
    """PEM certificates, one after the other, as gRPC gives those between the boat's own and the authority."""
    parts = b"".join(chain).split(_PEM_END)[:_CHAIN_MAX]
    return [part + _PEM_END for part in parts if part.strip()]
