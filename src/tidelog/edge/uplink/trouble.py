"""Why a boat cannot reach its cloud, and what to do: gRPC only reports that a socket was closed.

Called after a dial failed. It checks the boat's own files first: a certificate that has expired or is not valid yet by
the boat's clock. Then it makes a TLS handshake with the same certificate, whose alert shows why the cloud refuses it. A
gRPC server sends no alert: it closes the connection as soon as it has seen the certificate, before a byte of HTTP. That
is enough: by the boat's clock the certificate is good, so its authority is unknown there, or the cloud's clock differs.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidelog.edge.uplink.target import UplinkTarget
from tidelog.errors import CertificateRejected, CloudNotTrusted, LogError
from tidelog.pki.identity import parse_certificate, require_valid_at

PROBE_S: Final = 3.0
"""The timeout of each step of the handshake."""

_REMEDIES: Final = {
    "CERTIFICATE_EXPIRED": "by the cloud's clock it has expired: renew it with `tidelog ca renew`",
    "UNKNOWN_CA": "its authority is unknown there: issue it with the boats' authority, whose ca.crt the cloud has as "
    "-tls-client-ca",
    "CERTIFICATE_REVOKED": "it is revoked: issue a new one with `tidelog ca issue`",
    "CERTIFICATE_REQUIRED": "the cloud saw none: set replication.tls cert and key",
    "BAD_CERTIFICATE": "by the cloud's clock it is not valid yet, or it is damaged: compare both clocks, else issue it "
    "anew with `tidelog ca issue`",
    "CERTIFICATE_UNKNOWN": "the cloud cannot use it: issue it anew with `tidelog ca issue`",
    "UNSUPPORTED_CERTIFICATE": "it is not one for a boat: issue one with `tidelog ca issue`",
}
_UNKNOWN: Final = (
    "its authority is unknown there, or the clocks differ: issue it with the boats' authority, whose ca.crt the cloud "
    "has as -tls-client-ca, and compare both clocks"
)


def own_trouble(target: UplinkTarget, now_us: int) -> LogError | None:
    """What is wrong with the boat's own certificate or authority by the boat's clock."""
    if target.certificate is None or target.authority is None:
        return None
    try:
        for pem in (target.certificate, target.authority):
            require_valid_at(parse_certificate(pem), now_us)
    except LogError as error:
        return error
    return None


def probe(target: UplinkTarget) -> LogError | None:
    """The TLS error, or None when there is none or the cloud cannot be reached at all. Blocks; for a thread."""
    host, _, port = target.address.rpartition(":")
    host = host.strip("[]")
    try:
        context = _context(target)
        with (
            socket.create_connection((host, int(port)), timeout=PROBE_S) as plain,
            context.wrap_socket(plain, server_hostname=target.server_name or host) as secured,
        ):
            # With TLS 1.3 a server looks at our certificate after our side of the handshake is over.
            if not secured.recv(1):
                return CertificateRejected(name=target.instance, alert="nothing and hangs up", remedy=_UNKNOWN)
    except ssl.SSLCertVerificationError as error:
        return CloudNotTrusted(address=target.address, problem=error.verify_message)
    except ssl.SSLError as error:
        reason = error.reason or ""
        remedy = next((words for alert, words in _REMEDIES.items() if reason.endswith(alert)), None)
        return None if remedy is None else CertificateRejected(name=target.instance, alert=reason, remedy=remedy)
    except (OSError, ValueError):
        return None
    return None


def _context(target: UplinkTarget) -> ssl.SSLContext:
    assert target.certificate is not None
    assert target.key is not None
    assert target.authority is not None
    context = ssl.create_default_context(cadata=target.authority.decode())
    context.set_alpn_protocols(["h2"])
    # OpenSSL takes these from files only; the key is not to lie on a disk a second time.
    with _as_file(target.certificate) as certificate, _as_file(target.key) as key:
        context.load_cert_chain(certificate, key)
    return context


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[Path]:
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("pem")
        try:
            os.write(number, data)
            yield Path(f"/proc/self/fd/{number}")
        finally:
            os.close(number)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        yield Path(file.name)
