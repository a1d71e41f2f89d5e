"""The settings by which `tidelog node` serves boats."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.cli.main import run
from tidelog.cli.settings.node import NODE_SETTINGS, check_node, node_options
from tidelog.config import Loaded, load_settings

PEERS = ("-id", "n1", "-peers", "n1=127.0.0.1:9500", "-insecure-dev")


def loaded(tmp_path: Path, *arguments: str) -> Loaded:
    given = [*PEERS, "-data-dir", str(tmp_path / "data"), *arguments]
    found = load_settings(NODE_SETTINGS, arguments=given, environment={})
    check_node(found)
    return found


def test_a_node_serves_no_boats_unless_it_is_told_where(tmp_path: Path) -> None:
    found = loaded(tmp_path)
    assert not found.problems
    assert node_options(found.values).uplink is None


def test_the_uplink_has_the_clouds_settings(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        *("-grpc-listen", "127.0.0.1:9443", "-boat-factor", "2", "-replication-rate-limit", "77"),
        *("-journal-retention-max-size", "8388608", "-grpc-advertise", "boats.example.com:443"),
    )
    assert not found.problems
    uplink = node_options(found.values).uplink
    assert uplink is not None
    assert (uplink.listen, uplink.advertise) == ("127.0.0.1:9443", "boats.example.com:443")
    assert (uplink.factor, uplink.limits.rate_frames_per_s) == (2, 77)
    assert uplink.channel_config.retention.max_bytes == 8_388_608
    assert not uplink.is_alone, "a cluster's channels are altered by `tidelog channel alter`"


def test_ports_are_not_shared_and_boats_need_an_authority(tmp_path: Path) -> None:
    found = loaded(tmp_path, "-grpc-listen", "127.0.0.1:9500")
    assert "-grpc-listen and -listen are the same port; give each its own" in found.problems
    given = [*PEERS[:4], "-data-dir", str(tmp_path / "data"), "-grpc-listen", "127.0.0.1:9443"]
    secure = load_settings(NODE_SETTINGS, arguments=given, environment={})
    check_node(secure)
    assert any(problem.startswith("-grpc-tls-client-ca is missing") for problem in secure.problems)


def test_a_clouds_node_name_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["cloud", "-insecure-dev", "-data-dir", str(tmp_path), "-node", "no/name", "-validate-config"]
    assert run(arguments) == 2
    assert "is no name" in capsys.readouterr().err
