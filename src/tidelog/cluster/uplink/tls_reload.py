"""The cloud's TLS files, read again whenever they change, without a restart.

gRPC asks before each new connection. Key, certificate and the boats' authority are one generation: they are taken
together or not at all, so a connection never sees a new certificate with an old key. Streams that run are not touched.

TR1  Files that cannot be read, do not parse or do not fit together leave the last good generation in force, and
     one line in the log says so for each new state of the files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from tidelog.errors import LogError
from tidelog.pki.tls_files import Stamp, check_authority, check_pair, read_pem, stamp_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    certificate: Path
    key: Path
    client_authority: Path
    """Certificates of the authorities that sign boats. During a roll it holds the old and the new one."""
    other_authorities: tuple[Path, ...] = ()
    """Authorities of other callers: the nodes'."""


class TlsReloader:
    """Built once; `credentials` go to the server's port."""

    def __init__(self, files: TlsFiles, *, log: Callable[[str], None]) -> None:
        self._files = files
        self._log = log
        self._guard = threading.Lock()
        # The stamp is older than the bytes at most: a change in between is found again.
        self._stamp = self._stamp_now()
        self._initial = self._read()
        self.generation = 1

    def credentials(self) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(self._initial, self._fetch, require_client_authentication=True)

    def _fetch(self) -> Any:
        """The new generation, or None to stay with the last one. Called by gRPC, in its threads."""
        with self._guard:
            stamp = self._stamp_now()
            if stamp == self._stamp:
                return None
            self._stamp = stamp
            try:
                fetched = self._read()
            except LogError as error:
                self._log(f"tls files changed and were not taken code={error.code} detail={str(error)!r}")
                return None
            self.generation += 1
            self._log(f"tls files changed and were taken generation={self.generation}")
            return fetched

    def _stamp_now(self) -> Stamp:
        files = self._files
        return stamp_of(files.certificate, files.key, files.client_authority, *files.other_authorities)

    def _read(self) -> Any:
        files = self._files
        certificate, key, authority = map(read_pem, (files.certificate, files.key, files.client_authority))
        check_pair(certificate, key, path=files.key)
        check_authority(authority, path=files.client_authority)
        for path in files.other_authorities:
            other = read_pem(path)
            check_authority(other, path=path)
            authority += b"\n" + other
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=authority)
