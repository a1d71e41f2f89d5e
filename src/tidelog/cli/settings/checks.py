"""Checks of settings that look at the machine: files, folders, certificates, ports.

Each gives what is wrong in words, or nothing, so that a process can list every problem before it opens anything.
Whether a certificate is in its time is not checked: a boat's clock may be wrong until it has a fix.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.config import Loaded, split_address
from tidelog.errors import BadIdentity, InvalidConfig, LogError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

_PEM_BYTES_MAX: Final = 256 * 1024


def paths(values: Mapping[str, Any], *flags: str) -> list[Path | None]:
    """What these settings name, each a path, or None where nothing is named."""
    return [Path(values[flag]) if values[flag] else None for flag in flags]


def missing(loaded: Loaded, *flags: str) -> str:
    """Which of these settings name nothing, as the beginning of a sentence; empty if each names something."""
    absent = [f"-{flag}" for flag in flags if not loaded.values[flag]]
    return f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} missing" if absent else ""


def check_file(loaded: Loaded, flag: str) -> bytes | None:
    """The content of a small file that a setting names; None if it names none or cannot be read."""
    name = loaded.values[flag]
    if not name:
        return None
    # os.path, because pathlib raises where a folder on the way may not be entered.
    if os.path.isdir(name):
        loaded.problems.append(f"{loaded.named(flag)} = {name!r} is a folder; name a file in it")
        return None
    try:
        with open(name, "rb") as file:
            data = file.read(_PEM_BYTES_MAX + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        loaded.problems.append(f"{loaded.named(flag)} = {name!r} cannot be read: {reason}; check path and permissions")
        return None
    if len(data) > _PEM_BYTES_MAX:
        loaded.problems.append(
            f"{loaded.named(flag)} = {name!r} is larger than {_PEM_BYTES_MAX} bytes; it is no such file"
        )
        return None
    return data


def check_folder(loaded: Loaded, flag: str, *, needed_for: str) -> None:
    """A folder that is there, or can be made: no part of its path is something else."""
    name = loaded.values[flag]
    if not name:
        loaded.problems.append(f"{loaded.named(flag)} is empty; name a folder for {needed_for}")
        return
    path = Path(name).absolute()
    for part in (path, *path.parents):
        if os.path.isdir(part):
            # A file system that can only be read is no mistake in the settings: the process says so (exit code 74).
            is_read_only = bool(os.statvfs(part).f_flag & os.ST_RDONLY)
            if not is_read_only and not os.access(part, os.W_OK | os.X_OK, effective_ids=True):
                loaded.problems.append(
                    f"{loaded.named(flag)} = {name!r} cannot be used: permission denied to write in {part}; "
                    "change its owner or name another folder"
                )
            return
        if os.path.lexists(part):
            loaded.problems.append(f"{loaded.named(flag)} = {name!r}: {part} is a file; name a folder for {needed_for}")
            return


def check_ports(loaded: Loaded, flag: str, *others: str) -> None:
    """Listeners that are both wanted have a port each, unless each has a host of its own or any port will do."""
    if not loaded.values[flag]:
        return
    host, port = split_address(loaded.values[flag])
    for other in others:
        if loaded.values[other]:
            other_host, other_port = split_address(loaded.values[other])
            if port and port == other_port and (host == other_host or not (host and other_host)):
                loaded.problems.append(f"-{flag} and -{other} are the same port; give each its own")


def check_pair(loaded: Loaded, *, certificate: str, key: str) -> x509.Certificate | None:
    """A certificate and its key, given together or not at all. The certificate if both are good."""
    if bool(loaded.values[certificate]) != bool(loaded.values[key]):
        there, missing = (certificate, key) if loaded.values[certificate] else (key, certificate)
        loaded.problems.append(f"{loaded.named(there)} needs -{missing} beside it")
    chain = check_certificates(loaded, certificate)
    private = _check_key(loaded, key)
    if not chain or private is None:
        return None
    if chain[0].public_key() != private.public_key():
        loaded.problems.append(
            f"{loaded.named(key)} = {loaded.values[key]!r} is not the key of {loaded.values[certificate]!r}; "
            "name the two files that were issued together"
        )
        return None
    return chain[0]


def check_certificates(loaded: Loaded, flag: str) -> Sequence[x509.Certificate]:
    """One or more certificates in a PEM file; none if there is no such file or it holds something else."""
    data = check_file(loaded, flag)
    if data is None:
        return ()
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(data)
    except (ValueError, TypeError):
        loaded.problems.append(
            f"{loaded.named(flag)} = {loaded.values[flag]!r} is no PEM certificate; `tidelog ca issue` makes one"
        )
        return ()


def _check_key(loaded: Loaded, flag: str) -> PrivateKeyTypes | None:
    data = check_file(loaded, flag)
    if data is None:
        return None
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(data, password=None)
    except TypeError:
        problem = "is encrypted; give a key without a passphrase, readable by this process alone"
    except (ValueError, UnsupportedAlgorithm):
        problem = "is no PEM private key; `tidelog ca issue` makes one beside the certificate"
    loaded.problems.append(f"{loaded.named(flag)} = {loaded.values[flag]!r} {problem}")
    return None


def check_certificate_names(loaded: Loaded, certificate: x509.Certificate, flag: str) -> None:
    """The cloud believes the certificate alone: a different instance id would be refused at every Handshake."""
    from tidelog.pki.identity import identity_of_certificate

    try:
        identity = identity_of_certificate(certificate)
    except BadIdentity:
        return  # an authority of another make; what it means is for the cloud to say
    if identity.name != loaded.values[flag]:
        loaded.problems.append(
            f"{loaded.named(flag)} = {loaded.values[flag]!r} but the certificate is that of {identity}; "
            "use its name, or the right certificate"
        )


def check_http(loaded: Loaded) -> None:
    """Settings of the HTTP port that boat and cloud share."""
    check_pair(loaded, certificate="http-tls-cert", key="http-tls-key")
    check_certificates(loaded, "http-tls-client-ca")
    if loaded.values["http-tls-client-ca"] and not loaded.values["http-tls-cert"]:
        loaded.problems.append(f"{loaded.named('http-tls-client-ca')} needs -http-tls-cert and -http-tls-key beside it")
    _check_tokens(loaded)
    for origin in loaded.values["http-cors-origins"]:
        if origin == "*" or "://" not in origin or origin.rstrip("/").count("/") != 2:
            loaded.problems.append(
                f"{loaded.named('http-cors-origins')} has {origin!r}, which is no origin; "
                "write it like https://app.example.com"
            )


def _check_tokens(loaded: Loaded) -> None:
    if not loaded.values["http-tokens"]:
        return
    from tidelog.http.access import TokenFile

    try:
        TokenFile(loaded.values["http-tokens"], now_us=time.time_ns() // 1000)
    except InvalidConfig as error:
        loaded.problems.append(f"{loaded.named('http-tokens')}: {error}; `tidelog token new` writes such a file")


def check_revocations(loaded: Loaded, flag: str) -> None:
    """A list that cannot be read would let nobody in."""
    if not loaded.values[flag]:
        return
    from tidelog.pki.revocation import RevocationList

    try:
        RevocationList(Path(loaded.values[flag]), now_us=time.time_ns() // 1000)
    except LogError as error:
        loaded.problems.append(f"{loaded.named(flag)}: {error}; `tidelog ca init` writes such a file")


def check_replay(loaded: Loaded, flag: str) -> None:
    """Files to replay: there, and of a kind that can be read."""
    if not loaded.values[flag]:
        return
    from tidelog.edge.sources.replay import ReplaySource

    for path in loaded.values[flag]:
        try:
            ReplaySource([path])
        except LogError as error:
            loaded.problems.append(f"{loaded.named(flag)}: {error}")


def require_free(address: str, flag: str) -> None:
    """Raise before anything is opened if something else listens there. Port 0 is always free."""
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        problem = f"{address!r} is no address of this machine ({error.strerror}); use one, or :{port} for all"
        raise InvalidConfig(section=f"-{flag}", problems=[problem]) from error
    family, kind, protocol, _, where = found[0]
    with socket.socket(family, kind, protocol) as probe:
        # As servers do: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(where)
            probe.listen(1)
        except OSError as error:
            problem = f"cannot listen on {address}: {error.strerror}; stop what listens there or choose another port"
            raise InvalidConfig(section=f"-{flag}", problems=[problem]) from error
