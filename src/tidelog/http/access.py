"""Authentication of HTTP callers, and their permissions.

A caller is identified by a token (`Authorization: Bearer`, or `X-API-Key` as lplex's clients send it) or by a client
certificate. Anonymous access is off unless the operator allows it.

The token file has one token per line: a name, the SHA-256 of the secret in hex, the scopes with commas between,
and, if the token shall not see every instance, the instances with commas between (`*` and `?` as in a shell).
`#` begins a comment. The secret itself is nowhere on the disk, so a stolen file opens nothing.

What a caller must keep: ask on every request, for tokens may be taken back and certificates revoked meanwhile.

HA1  A token is compared with every known one, each in constant time.
HA2  The file is used as a whole. One that became unusable (a typo, cut off, writable by others) changes nothing: the
     last good one stays in force and `problem` says why. A missing file means that there are no tokens.
HA3  An operator's certificate may do everything, a boat's reads its own instance, a node's nothing.
HA4  Anonymous callers may only read; writing needs a named credential.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from tidelog.errors import InvalidConfig, LogError, RequestRefused
from tidelog.pki.identity import identity_of_certificate, is_name, parse_certificate, require_valid_at
from tidelog.pki.revocation import RevocationList
from tidelog.storage.log.writer import wall_clock_us
from tidelog.units import MIB, US_PER_S

READ_STATUS: Final = "read:status"
"""Heads, cursors, holes, events of replication, details of health."""
READ_DATA: Final = "read:data"
"""Frames, devices, values, history."""
READ_METRICS: Final = "read:metrics"
WRITE_BUS: Final = "write:bus"
"""Put frames on a boat's bus. Steering and engines listen there, so the scope must be given explicitly."""
READ_SCOPES: Final = (READ_STATUS, READ_DATA, READ_METRICS)
SCOPES: Final = (*READ_SCOPES, WRITE_BUS)

EVERY_INSTANCE: Final = ("*",)
TOKEN_PREFIX: Final = "tdl_"
TOKENS_MAX: Final = 10_000
_FILE_BYTES_MAX: Final = 4 * MIB
_SECRET_BYTES: Final = 32
_CHECK_INTERVAL_US: Final = US_PER_S
_SETTLED_US: Final = 2 * US_PER_S
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH | stat.S_IROTH
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_PATTERN: Final = re.compile(r"[A-Za-z0-9._*?-]{1,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """An authenticated or anonymous caller."""

    name: str
    scopes: frozenset[str]
    instances: tuple[str, ...] = EVERY_INSTANCE
    """Patterns of the instances it may see."""

    def may(self, scope: str) -> bool:
        return scope in self.scopes

    def sees(self, instance: str) -> bool:
        return any(fnmatchcase(instance, pattern) for pattern in self.instances)


NOBODY: Final = Principal(name="nobody", scopes=frozenset(), instances=())
ANYBODY: Final = Principal(name="anybody", scopes=frozenset(READ_SCOPES))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A new token: the secret for its holder, the line for the file."""

    secret: str
    line: str


def new_token(
    *,
    name: str,
    scopes: Sequence[str] = READ_SCOPES,
    instances: Sequence[str] = EVERY_INSTANCE,
    secret: str | None = None,
) -> NewToken:
    """Make a token. Show the secret once; only the line is kept. Raises `InvalidConfig` for what no line can hold."""
    secret = secret or TOKEN_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    line = f"{name} {_digest(secret).hex()} {','.join(scopes)}"
    if tuple(instances) != EVERY_INSTANCE:
        line += f" {','.join(instances)}"
    try:
        parsed = _parse_line(line)
    except ValueError as error:
        raise InvalidConfig(section="token", problems=[str(error)]) from None
    wanted = Principal(name=name, scopes=frozenset(scopes), instances=tuple(instances))
    # A name with a # in it, or no instances at all, would make a line with another meaning.
    if parsed is None or parsed[1] != wanted:
        problem = "a token has a name, at least one scope and at least one instance, none with a space or # in it"
        raise InvalidConfig(section="token", problems=[problem])
    return NewToken(secret=secret, line=line)


def parse_tokens(data: bytes) -> dict[bytes, Principal]:
    """Digest to holder. Raises ValueError in an operator's words (HA2)."""
    if data and not data.endswith(b"\n"):
        raise ValueError("its last line does not end with a newline, so it may be cut off")
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    found: dict[bytes, Principal] = {}
    for number, line in enumerate(lines, 1):
        try:
            entry = _parse_line(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if entry is not None:
            found[entry[0]] = entry[1]
    if len(found) > TOKENS_MAX:
        raise ValueError(f"{len(found)} tokens are more than {TOKENS_MAX}")
    return found


def _parse_line(line: str) -> tuple[bytes, Principal] | None:
    words = line.partition("#")[0].split()
    if not words:
        return None
    if len(words) not in (3, 4):
        raise ValueError("a token is a name, a SHA-256 in hex, scopes, and perhaps instances")
    name, digest, scopes = words[0], words[1], words[2].split(",")
    instances = words[3].split(",") if len(words) == 4 else list(EVERY_INSTANCE)
    if not is_name(name):
        raise ValueError(f"{name!a} is not a name; use letters, digits, dots, dashes and underscores")
    if _DIGEST.fullmatch(digest) is None:
        raise ValueError("the second word is not a SHA-256 of 64 lower-case hex digits")
    if unknown := [scope for scope in scopes if scope not in SCOPES]:
        raise ValueError(f"{unknown[0]!a} is not a scope; the scopes are {', '.join(SCOPES)}")
    if bad := [pattern for pattern in instances if _PATTERN.fullmatch(pattern) is None]:
        raise ValueError(f"{bad[0]!a} is not an instance or a pattern of some")
    return bytes.fromhex(digest), Principal(name=name, scopes=frozenset(scopes), instances=tuple(instances))


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


class TokenFile:
    """The tokens in force. Opening it reads the file and raises if that is not possible."""

    def __init__(
        self, path: str | os.PathLike[str], *, now_us: int, check_interval_us: int = _CHECK_INTERVAL_US
    ) -> None:
        self._path = os.fspath(path)
        self._check_interval_us = check_interval_us
        self._tokens: dict[bytes, Principal] = {}
        self._stamp: tuple[int, int, int] | None = None
        self._checked_at_us = now_us
        self._problem: str | None = None
        self._reload(now_us)
        if self._problem is not None:
            raise InvalidConfig(section="tokens", problems=[f"{self._path}: {self._problem}"])

    @property
    def problem(self) -> str | None:
        """Why the file on disk is not in force, for the operator; None when it is."""
        return f"{self._path}: {self._problem}" if self._problem is not None else None

    def tokens(self, now_us: int) -> Mapping[bytes, Principal]:
        """Look a token up by its digest; checks the file first if it is due."""
        # A clock that was set back must not stop the checks.
        if not 0 <= now_us - self._checked_at_us < self._check_interval_us:
            self._checked_at_us = now_us
            self._reload(now_us)
        return self._tokens

    def _reload(self, now_us: int) -> None:
        try:
            found = self._read(now_us)
        except FileNotFoundError:
            self._tokens, self._stamp = {}, None
            self._problem = "it is gone, so no token is good"
        except (OSError, ValueError) as error:
            self._stamp = None
            words = error.strerror if isinstance(error, OSError) else str(error)
            self._problem = f"{words}; the tokens read before stay in force"
        else:
            self._problem = None
            if found is not None:
                self._tokens = found

    def _read(self, now_us: int) -> dict[bytes, Principal] | None:
        """The file's tokens; None if they are those that were read last."""
        # Non-blocking: a path that leads to a pipe must not delay the server.
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("it is not a file")
            if status.st_mode & _OTHERS:
                raise ValueError("others may read or change it; say: chmod 600")
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            if stamp == self._stamp:
                return None
            data = file.read(_FILE_BYTES_MAX + 1)
        if len(data) > _FILE_BYTES_MAX:
            raise ValueError(f"it is larger than the limit of {_FILE_BYTES_MAX} bytes")
        tokens = parse_tokens(data)
        # A time stamp this young cannot tell a second change from the first.
        self._stamp = stamp if now_us - status.st_mtime_ns // 1000 >= _SETTLED_US else None
        return tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    anonymous: bool = False
    """Let everybody read everything. For a bus that is public anyway, and for tests."""
    api_key: str = field(default="", repr=False)
    """lplex's one key: a token with every scope."""
    token_file: Path | None = None
    fleet: str | None = None
    """Accept only certificates of this fleet; None accepts all that the client authority signed."""


class Access:
    """Authenticates the caller of a request."""

    def __init__(
        self,
        options: AccessOptions,
        *,
        revocations: RevocationList | None = None,
        now_us: Callable[[], int] = wall_clock_us,
    ) -> None:
        self._options = options
        self._revocations = revocations
        self._now_us = now_us
        self._file = TokenFile(options.token_file, now_us=now_us()) if options.token_file is not None else None
        self._api_key = _digest(options.api_key) if options.api_key else None

    @property
    def problem(self) -> str | None:
        """What is wrong with the token file now."""
        return self._file.problem if self._file is not None else None

    def caller(self, headers: Mapping[str, str], certificate: bytes | None) -> Principal:
        """The caller; `NOBODY` without credentials. Raises `RequestRefused` (401) for credentials that are not good."""
        if (secret := _presented(headers)) is not None:
            return self._holder(secret)
        if self._options.anonymous:
            return ANYBODY  # a certificate must not permit less than none would
        return self._certified(certificate) if certificate is not None else NOBODY

    def _holder(self, secret: str) -> Principal:
        presented = _digest(secret)
        found: Principal | None = None
        if self._api_key is not None and hmac.compare_digest(presented, self._api_key):
            found = Principal(name="api-key", scopes=frozenset(SCOPES))
        known = self._file.tokens(self._now_us()) if self._file is not None else {}
        for digest, principal in known.items():
            if hmac.compare_digest(presented, digest):
                found = principal
        if found is None:
            raise RequestRefused(
                status=401, reason="invalid_token", detail="this token is not known; ask for a new one"
            )
        return found

    def _certified(self, data: bytes) -> Principal:
        """The permissions of a certificate that TLS has verified (HA3)."""
        try:
            certificate = parse_certificate(data)
            identity = identity_of_certificate(certificate, fleet=self._options.fleet)
            require_valid_at(certificate, self._now_us())
            if self._revocations is not None:
                self._revocations.require_good(certificate.serial_number, self._now_us())
        except LogError as error:
            raise RequestRefused(status=401, reason=error.code, detail=str(error)) from error
        if identity.kind == "operator":
            return Principal(name=str(identity), scopes=frozenset(SCOPES))
        if identity.kind == "boat":
            # A name holds no * and no ?, so as a pattern it is itself alone.
            return Principal(name=str(identity), scopes=frozenset({READ_STATUS, READ_DATA}), instances=(identity.name,))
        return Principal(name=str(identity), scopes=frozenset(), instances=())


def _presented(headers: Mapping[str, str]) -> str | None:
    """The secret in the headers, if there is one."""
    authorization = headers.get("Authorization")
    if authorization is None:
        return headers.get("X-API-Key")
    scheme, _, secret = authorization.partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise RequestRefused(
            status=401, reason="invalid_token", detail="write the token like this: Authorization: Bearer <token>"
        )
    return secret.strip()
