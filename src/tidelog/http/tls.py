"""The certificate a server shows, read again when it changes, without a restart.

Certificate, key and client authority are one generation: they are loaded into a context of their own, and every new
connection gets the newest one that loaded as a whole. While an operator (or an ACME client) has replaced the
certificate and not yet the key, the last good generation stays; `problem` says why.

What a caller must keep: give `context` to the listener. Open connections keep the certificate that they began with.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidelog.errors import InvalidConfig

_CHECK_INTERVAL_S: Final = 1.0
_SETTLED_NS: Final = 2_000_000_000
_Stamps = tuple[tuple[int, int, int], ...]


class ServerTls:
    """`require_client` refuses callers without a certificate during the handshake; else they may show one."""

    def __init__(
        self,
        *,
        certificate: Path,
        key: Path,
        client_ca: Path | None = None,
        require_client: bool = False,
        protocols: tuple[str, ...] = ("http/1.1",),
        section: str = "http.tls",
        check_interval_s: float = _CHECK_INTERVAL_S,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._require_client = require_client
        self._protocols = protocols
        self._check_interval_s = check_interval_s
        self._log = log
        self.problem: str | None = None
        self.generation = 1
        stamps = self._stamps()
        try:
            self._current = self._load()
            self.context = self._load()
        except (OSError, ssl.SSLError) as error:
            raise InvalidConfig(section=section, problems=[self._words(error)]) from error
        self._seen = _settled_or_none(stamps)
        self._checked_s = time.monotonic()
        self.context.sni_callback = self._choose

    def refresh(self) -> bool:
        """Load the files if they have changed; returns whether a new generation is in force."""
        stamps = self._stamps()
        if stamps is not None and stamps == self._seen:
            return False
        try:
            context = self._load()
        except (OSError, ssl.SSLError) as error:
            problem = self._words(error)
            if problem != self.problem:
                self._log(f"http certificate kept reason={problem!r}")
            self.problem = problem
            return False
        self._seen = _settled_or_none(stamps)
        self._current = context
        self.problem = None
        self.generation += 1
        return True

    def _choose(self, connection: ssl.SSLObject, _host: str | None, _context: ssl.SSLContext) -> None:
        """Called by OpenSSL for every handshake."""
        now_s = time.monotonic()
        if now_s - self._checked_s >= self._check_interval_s:
            self._checked_s = now_s
            self.refresh()
        connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(self._protocols)
        # A resumed session would keep a client's old proof after a change of the authority.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        # An empty password, or OpenSSL would ask the terminal for the one of an encrypted key.
        context.load_cert_chain(self._certificate, self._key, password="")
        if self._client_ca is not None:
            context.load_verify_locations(self._client_ca)
            context.verify_mode = ssl.CERT_REQUIRED if self._require_client else ssl.CERT_OPTIONAL
        return context

    def _stamps(self) -> _Stamps | None:
        files = [self._certificate, self._key, *([self._client_ca] if self._client_ca is not None else [])]
        try:
            return tuple((status.st_ino, status.st_mtime_ns, status.st_size) for status in map(os.stat, files))
        except OSError:
            return None

    def _words(self, error: OSError) -> str:
        if isinstance(error, ssl.SSLError):
            problem = f"{self._certificate} and {self._key} do not load: {error.reason or error}"
            return f"{problem}; check that they are PEM and belong together"
        return f"{error.filename or self._certificate} cannot be read: {error.strerror}"


def _settled_or_none(stamps: _Stamps | None) -> _Stamps | None:
    """None for time stamps so young that they cannot tell a second change from the first."""
    if stamps is None or max(modified_ns for _, modified_ns, _ in stamps) > time.time_ns() - _SETTLED_NS:
        return None
    return stamps
