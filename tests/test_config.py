"""Settings: flag over environment over file over default; what is unknown is said, with the nearest known name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.config import DURATION, INTEGER, SIZE, SWITCH, Setting, load_settings
from tidelog.errors import InvalidConfig

SETTINGS = (
    Setting(flag="replication-target", key="replication.target"),
    Setting(flag="replication-instance-id", key="replication.instance-id"),
    Setting(flag="replication-tls-cert", key="replication.tls.cert"),
    Setting(flag="replication-max-live-lag", key="replication.max-live-lag", kind=INTEGER, default=10_000),
    Setting(
        flag="replication-min-lag-reconnect-interval",
        key="replication.min-lag-reconnect-interval",
        kind=DURATION,
        default=30_000,
    ),
    Setting(flag="journal-max-size", key="journal.max-size", kind=SIZE),
    Setting(flag="insecure-dev", key="insecure-dev", kind=SWITCH, default=False),
)
SEED_FILE = """
replication {
target = "lplex.example.com:9443"
instance-id = "boat-001"
tls {
cert = "/etc/lplex-server/boat-001.crt"
}
}
"""


@pytest.fixture
def seed_file(tmp_path: Path) -> Path:
    file = tmp_path / "lplex-server.conf"
    file.write_text(SEED_FILE)
    return file


def test_the_seeds_file_is_read_verbatim(seed_file: Path) -> None:
    values = load_settings(SETTINGS, arguments=[], environment={}, file=seed_file)
    assert values["replication-target"] == "lplex.example.com:9443"
    assert values["replication-instance-id"] == "boat-001"
    assert values["replication-tls-cert"] == "/etc/lplex-server/boat-001.crt"
    assert values["replication-max-live-lag"] == 10_000


def test_a_flag_beats_the_environment_which_beats_the_file(seed_file: Path) -> None:
    environment = {"TIDELOG_REPLICATION_TARGET": "env:1", "TIDELOG_REPLICATION_INSTANCE_ID": "boat-002"}
    values = load_settings(
        SETTINGS, arguments=["-replication-target", "flag:1"], environment=environment, file=seed_file
    )
    assert (values["replication-target"], values["replication-instance-id"]) == ("flag:1", "boat-002")


@pytest.mark.parametrize(
    "arguments",
    [
        ["-replication-max-live-lag", "5"],
        ["--replication-max-live-lag", "5"],
        ["-replication-max-live-lag=5"],
        ["--replication-max-live-lag=5"],
    ],
)
def test_one_dash_or_two_with_or_without_an_equals_sign(arguments: list[str]) -> None:
    assert load_settings(SETTINGS, arguments=arguments, environment={})["replication-max-live-lag"] == 5


def test_durations_sizes_and_switches_are_parsed() -> None:
    arguments = ["-replication-min-lag-reconnect-interval", "500ms", "-journal-max-size", "2MiB", "-insecure-dev"]
    values = load_settings(SETTINGS, arguments=arguments, environment={})
    assert values["replication-min-lag-reconnect-interval"] == 500
    assert values["journal-max-size"] == 2 * 1024 * 1024
    assert values["insecure-dev"] is True
    off = load_settings(SETTINGS, arguments=["-insecure-dev", "false"], environment={})
    assert off["insecure-dev"] is False


def test_everything_that_is_wrong_is_said_at_once_with_the_nearest_name(tmp_path: Path) -> None:
    file = tmp_path / "boat.conf"
    file.write_text('replication { targett = "x", max-live-lag = many }')
    with pytest.raises(InvalidConfig) as caught:
        load_settings(
            SETTINGS, arguments=["-replication-traget", "-insecure-dev=perhaps", "stray"], environment={}, file=file
        )
    text = str(caught.value)
    assert "did you mean replication.target?" in text
    assert "did you mean -replication-target?" in text
    assert "replication.max-live-lag = 'many' is not a whole number" in text
    assert "-insecure-dev = 'perhaps' is not true or false" in text
    assert "stray is unknown" in text


def test_a_flag_without_its_value_and_files_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="needs a value"):
        load_settings(SETTINGS, arguments=["-replication-target"], environment={})
    with pytest.raises(InvalidConfig, match="cannot be read"):
        load_settings(SETTINGS, arguments=[], environment={}, file=tmp_path / "nowhere.conf")
    broken = tmp_path / "broken.conf"
    broken.write_text("replication { target = ")
    with pytest.raises(InvalidConfig, match="is not HOCON"):
        load_settings(SETTINGS, arguments=[], environment={}, file=broken)
