"""Certificates and keys as files: read within a limit, checked to fit together, with a stamp that shows changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from tidelog.errors import AuthorityError
from tidelog.pki.files import read_file
from tidelog.units import KIB

_PEM_BYTES_MAX: Final = 256 * KIB

Stamp: TypeAlias = tuple[tuple[int, int, int, int] | None, ...]


def read_pem(path: Path) -> bytes:
    return read_file(path, bytes_max=_PEM_BYTES_MAX)


def check_pair(certificate_pem: bytes, key_pem: bytes, *, path: Path) -> None:
    """Refuse a key (the file at `path`) that is not the certificate's."""
    chain = parse_pem(path, lambda: x509.load_pem_x509_certificates(certificate_pem))
    key = parse_pem(path, lambda: serialization.load_pem_private_key(key_pem, None))
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    if chain[0].public_key().public_bytes(*form) != key.public_key().public_bytes(*form):
        raise AuthorityError(path=str(path), problem="it is not the key of the certificate; install both together")


def check_authority(authority_pem: bytes, *, path: Path) -> None:
    parse_pem(path, lambda: x509.load_pem_x509_certificates(authority_pem))


def parse_pem(path: Path, parse: Callable[[], Any]) -> Any:
    try:
        return parse()
    except (ValueError, TypeError) as error:
        problem = f"it, or the certificate that belongs to it, is not PEM that can be used: {error}"
        raise AuthorityError(path=str(path), problem=problem) from error


def stamp_of(*paths: Path) -> Stamp:
    """A value that changes when any of the files does. A file that cannot be checked is None; reading it raises the
    reason."""
    return tuple(map(_stamp, paths))


def _stamp(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns
