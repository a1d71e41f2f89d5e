"""The address of a boat's cloud, and the boat's name and certificates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import grpc

from tidelog.errors import InvalidConfig, LogError
from tidelog.pki.tls_files import check_authority, check_pair, read_pem
from tidelog.units import MIB

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 20 * MIB),
    ("grpc.max_send_message_length", 20 * MIB),
    # The sender notices a half-open link by silence; this only keeps middleboxes from closing it. lplex clouds refuse
    # pings more often than every five minutes.
    ("grpc.keepalive_time_ms", 300_000),
    ("grpc.enable_retries", 0),
    # Answers are small and few: probing for the size of the link would only cost bytes on a metered one.
    ("grpc.http2.bdp_probe", 0),
    # Every dial makes its own connection: never the dead one of the dial before.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkTarget:
    """PEM bytes; plaintext only with `insecure_dev`."""

    address: str
    instance: str
    certificate: bytes | None = None
    key: bytes | None = None
    authority: bytes | None = None
    server_name: str | None = None
    insecure_dev: bool = False

    def __post_init__(self) -> None:
        if not self.insecure_dev and (self.certificate is None or self.key is None or self.authority is None):
            raise InvalidConfig(section="replication.tls", problems=["cert, key and ca are needed to reach the cloud"])

    def open_channel(self) -> Any:
        options: list[tuple[str, int | str]] = [*_OPTIONS]
        if self.server_name is not None:
            options.append(("grpc.ssl_target_name_override", self.server_name))
        if self.insecure_dev:
            return grpc.aio.insecure_channel(self.address, options=options)
        credentials = grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)
        return grpc.aio.secure_channel(self.address, credentials, options=options)


class ReloadingTarget:
    """A target whose certificate, key and authority are files, read again at every dial.

    The three are used together: while a renewal has written only one of them, or one cannot be read, the last good ones
    are used, and the reason is logged.
    """

    def __init__(
        self, target: UplinkTarget, *, certificate: Path, key: Path, authority: Path, log: Callable[[str], None]
    ) -> None:
        self._target = target
        self._paths = (certificate, key, authority)
        self._log = log

    def __call__(self) -> UplinkTarget:
        certificate_path, key_path, authority_path = self._paths
        try:
            certificate, key, authority = map(read_pem, self._paths)
            check_pair(certificate, key, path=key_path)
            check_authority(authority, path=authority_path)
            self._target = replace(self._target, certificate=certificate, key=key, authority=authority)
        except LogError as error:
            self._log(f"certificate not renewed file={certificate_path} reason={str(error)!r}")
        return self._target
