"""Certificates that no tool of ours would issue, and TLS handshakes to try them in."""

from __future__ import annotations

import socket
import ssl
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID, ObjectIdentifier

from tidelog.pki.certificates import Signer, certificate_pem, key_pem

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

NOW_US = time.time_ns() // 1000
"""OpenSSL reads the real clock, so certificates that it should accept are made for it."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEY = ec.generate_private_key(ec.SECP256R1())
HANDSHAKE_STEPS_MAX = 50


def moment(time_us: int) -> datetime:
    return EPOCH + timedelta(seconds=time_us // 1_000_000)


def crafted(
    *,
    common_names: Sequence[str] = (),
    uris: Sequence[str] = (),
    hosts: Sequence[str] = (),
    ca: bool = False,
    usages: Sequence[ObjectIdentifier] = (),
    signer: Signer | None = None,
    key: PrivateKey = KEY,
    begins_us: int = NOW_US - 1_000_000,
    ends_us: int = NOW_US + 86_400_000_000,
) -> x509.Certificate:
    """A certificate with anything in it; the library's own checks of names are turned off."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name, _validate=False) for name in common_names]
    subject = x509.Name(attributes)
    builder = x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=signer.certificate.subject if signer else subject,
        public_key=key.public_key(),
        serial_number=0xABCDEF,
        not_valid_before=moment(begins_us),
        not_valid_after=moment(ends_us),
    )
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier._init_without_validation(uri) for uri in uris]
    names += [x509.DNSName(host) for host in hosts]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if ca:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    if usages:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    return builder.sign(signer.key if signer else key, hashes.SHA256())


def sha1_signed(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """The same certificate, signed anew with SHA-1, which the library refuses to do: so it is put together by hand."""
    sha256, sha1 = bytes.fromhex("300a06082a8648ce3d040302"), bytes.fromhex("300906072a8648ce3d0401")
    contents = certificate.tbs_certificate_bytes
    assert contents.count(sha256) == 1
    contents = _der(0x30, _der_contents(contents).replace(sha256, sha1))
    signature = key.sign(contents, ec.ECDSA(hashes.SHA1()))
    return x509.load_der_x509_certificate(_der(0x30, contents + sha1 + _der(0x03, b"\0" + signature)))


def _der(tag: int, contents: bytes) -> bytes:
    size = len(contents)
    length = bytes([size]) if size < 0x80 else bytes([0x82]) + size.to_bytes(2, "big")
    return bytes([tag]) + length + contents


def _der_contents(encoded: bytes) -> bytes:
    """What is inside a sequence whose length takes two bytes."""
    assert encoded[1] in (0x81, 0x82)
    return encoded[2 + (encoded[1] & 0x7F) :]


def pem(**contents: object) -> bytes:
    return certificate_pem(crafted(**contents))  # type: ignore[arg-type]


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


@dataclass(frozen=True)
class Files:
    """A certificate (or chain) and its key, on disk for OpenSSL."""

    certificate: Path
    key: Path

    @classmethod
    def write(cls, folder: Path, name: str, chain: bytes, key: bytes | PrivateKey) -> Files:
        files = cls(folder / f"{name}.crt", folder / f"{name}.key")
        files.certificate.write_bytes(chain)
        files.key.write_bytes(key if isinstance(key, bytes) else key_pem(key))  # type: ignore[arg-type]
        return files


def contexts(
    server: Files, client: Files | None, *, server_ca: bytes, client_ca: bytes, strict: bool = True
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(server.certificate, server.key)
    server_context.load_verify_locations(cadata=client_ca.decode())
    server_context.verify_mode = ssl.CERT_REQUIRED
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.load_verify_locations(cadata=server_ca.decode())
    if client is not None:
        client_context.load_cert_chain(client.certificate, client.key)
    for context in (server_context, client_context):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if strict:
            context.verify_flags |= ssl.VERIFY_X509_STRICT
    return server_context, client_context


def handshake(server_context: ssl.SSLContext, client_context: ssl.SSLContext, *, hostname: str = "localhost") -> bytes:
    """The client's certificate, as the server saw it after a full handshake; raises what either side raised."""
    left, right = socket.socketpair()
    left.setblocking(False)
    right.setblocking(False)
    with (
        server_context.wrap_socket(left, server_side=True, do_handshake_on_connect=False) as server,
        client_context.wrap_socket(right, server_hostname=hostname, do_handshake_on_connect=False) as client,
    ):
        waiting = [client, server]
        for _ in range(HANDSHAKE_STEPS_MAX):
            for side in list(waiting):
                try:
                    side.do_handshake()
                    waiting.remove(side)
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    continue
            if not waiting:
                seen = server.getpeercert(binary_form=True)
                assert seen is not None
                return seen
    raise AssertionError("the handshake came to no end")
