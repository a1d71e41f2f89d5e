"""How a node serves boats. Says everything wrong at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tidelog.core.catalog import ChannelConfig, ChannelRetention
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.errors import InvalidConfig
from tidelog.pki.identity import is_fleet
from tidelog.storage.log.options import Retention
from tidelog.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceOptions:
    retention: Retention = field(default_factory=Retention)
    """The retention of every boat's channel, by the leader's clock and in whole segments."""
    state_interval_ms: int = 5_000
    sweep_interval_ms: int = 60_000
    snapshot_interval_ms: int = 3_600_000
    snapshot_bytes_min: int = 64 * MIB
    """What must have been appended since the last snapshot; it bounds what a new leader has to read."""
    device_idle_ms: int | None = 300_000
    """A device that is silent for so long while others speak is forgotten; None keeps it for ever."""

    def __post_init__(self) -> None:
        values = [self.state_interval_ms, self.sweep_interval_ms, self.snapshot_interval_ms, self.snapshot_bytes_min]
        if self.device_idle_ms is not None:
            values.append(self.device_idle_ms)
        if min(values) <= 0:
            raise InvalidConfig(section="maintenance", problems=["intervals and sizes must be positive"])


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkOptions:
    listen: str = ":9443"
    advertise: str | None = None
    """What boats and other nodes dial; the node's host and the port that is listened on by default."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    """The authority that signs boats; every boat must show a certificate of it."""
    revocations: Path | None = None
    """Revoked certificates of boats."""
    fleet: str | None = None
    """Boats whose certificate names another fleet are refused. One that names none is not."""
    insecure_dev: bool = False
    limits: ReceiverLimits = field(default_factory=ReceiverLimits)
    maintenance: MaintenanceOptions = field(default_factory=MaintenanceOptions)
    factor: int = 3
    """Replicas of a boat's channel; as many as there are nodes, if those are fewer."""
    is_alone: bool = False
    """A cluster of one: boats' channels follow these settings when they change, for nobody else has a say."""

    def __post_init__(self) -> None:
        problems = []
        if not self.insecure_dev and None in (self.tls_cert, self.tls_key, self.tls_client_ca):
            problems.append("tls-cert, tls-key and tls-client-ca are needed; insecure-dev serves plaintext for tests")
        if self.fleet is not None and not is_fleet(self.fleet):
            problems.append(f"{self.fleet!a} is not a fleet: use lower-case letters, digits, dots and dashes")
        problems += self.channel_config.problems()
        if problems:
            raise InvalidConfig(section="uplink", problems=problems)

    @property
    def channel_config(self) -> ChannelConfig:
        kept = self.maintenance.retention
        retention = ChannelRetention(max_age_ms=kept.max_age_ms, max_bytes=kept.max_bytes, max_events=kept.max_events)
        return ChannelConfig(factor=self.factor, retention=retention)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions:
    """How a node shows itself to the node that it passes a boat's or a reader's call on to."""

    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None
    """The authority that signs nodes."""
    revocations: Path | None = None
    insecure_dev: bool = False
    serves_https: bool = False
    """Tokens that came over TLS are passed on over TLS only."""
