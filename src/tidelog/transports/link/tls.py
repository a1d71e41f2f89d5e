"""TLS for the link between nodes: contexts that follow their files, and the holder of a peer's certificate.

Both ends present a certificate of the nodes' authority; TLS 1.3 only. Host names are not checked: a node is known by
the name in its certificate's URI, whatever address it is reached at.

What a caller must keep: get a context for every new connection; call `require_good` for open ones at least every 30 s.

LT1  Certificate, key and authority are one generation, taken together or not at all; while the files do not fit
     together the last good generation stays, and the log has one line for each new state of the files.
LT2  A certificate of another authority fails the handshake; one that is revoked, or of a kind that may not use the
     link, is refused with a typed error.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from tidelog.errors import AuthorityError, LogError, WrongKind
from tidelog.pki.identity import Identity, Kind, identity_of_certificate, parse_certificate, require_valid_at
from tidelog.pki.revocation import RevocationList
from tidelog.pki.tls_files import Stamp, check_authority, check_pair, read_pem, stamp_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTlsFiles:
    certificate: Path
    key: Path
    authority: Path
    """Certificates of the authorities that sign nodes. During a change of authority it has the old and the new one."""
    revoked: Path | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """The holder that a peer's certificate proved."""

    identity: Identity
    serial: int


class LinkTls:
    """Built once per process; used by its listener and for every dial."""

    def __init__(
        self, files: LinkTlsFiles, *, fleet: str | None = None, log: Callable[[str], None] = lambda _: None
    ) -> None:
        self._files = files
        self._fleet = fleet
        self._log = log
        # The stamp is older than the bytes at most: a change in between is found again.
        self._stamp = self._stamp_now()
        self._server, self._client = self._read()
        self.generation = 1
        self._revoked = None if files.revoked is None else RevocationList(files.revoked, now_us=_now_us())

    def server_context(self) -> ssl.SSLContext:
        self._refresh()
        return self._server

    def client_context(self) -> ssl.SSLContext:
        self._refresh()
        return self._client

    def proof_of(self, certificate_der: bytes, *, allowed_kinds: Collection[Kind]) -> Proof:
        """The peer's identity; raises a typed refusal if it may not use the link (LT2)."""
        certificate = parse_certificate(certificate_der)
        now_us = _now_us()
        require_valid_at(certificate, now_us)
        identity = identity_of_certificate(certificate, fleet=self._fleet)
        if identity.kind not in allowed_kinds:
            raise WrongKind(name=identity.name, kind=identity.kind, needed=" or ".join(sorted(allowed_kinds)))
        self.require_good(certificate.serial_number)
        return Proof(identity, certificate.serial_number)

    def require_good(self, serial: int) -> None:
        """Raise `CertificateRevoked` if it is on the list by now."""
        if self._revoked is not None:
            self._revoked.require_good(serial, _now_us())

    def _refresh(self) -> None:
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._server, self._client = self._read()
        except LogError as error:
            self._log(f"link tls files changed and were not taken code={error.code} detail={str(error)!r}")
            return
        self.generation += 1
        self._log(f"link tls files changed and were taken generation={self.generation}")

    def _stamp_now(self) -> Stamp:
        return stamp_of(self._files.certificate, self._files.key, self._files.authority)

    def _read(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        files = self._files
        certificate, key, authority = map(read_pem, (files.certificate, files.key, files.authority))
        check_pair(certificate, key, path=files.key)
        check_authority(authority, path=files.authority)
        try:
            return (
                self._context(ssl.PROTOCOL_TLS_SERVER, authority),
                self._context(ssl.PROTOCOL_TLS_CLIENT, authority),
            )
        except (OSError, ValueError) as error:
            problem = f"it does not load together with its key and {files.authority}: {error}"
            raise AuthorityError(path=str(files.certificate), problem=problem) from error

    def _context(self, side: int, authority: bytes) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        # A resumed session would keep an old proof after a change of the authority; links are few and long-lived.
        context.options |= ssl.OP_NO_TICKET
        if side == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0
        # An empty password, or OpenSSL would ask the terminal for the one of an encrypted key.
        context.load_cert_chain(self._files.certificate, self._files.key, password="")
        context.load_verify_locations(cadata=authority.decode("ascii"))
        return context


def _now_us() -> int:
    return time.time_ns() // 1000
