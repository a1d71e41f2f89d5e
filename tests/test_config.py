"""Settings: flag over environment over file over default; what is unknown is said, with the nearest known name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.config import (
    ANYTHING,
    DURATION,
    INTEGER,
    LISTEN,
    NAMES,
    PORT,
    SIZE,
    SWITCH,
    TARGET,
    Loaded,
    Setting,
    load_settings,
    one_of,
    split_address,
)
from tidelog.errors import InvalidConfig

SETTINGS = (
    Setting(flag="config", key=""),
    Setting(flag="replication-target", key="replication.target", kind=TARGET),
    Setting(flag="replication-instance-id", key="replication.instance-id"),
    Setting(flag="replication-tls-cert", key="replication.tls.cert"),
    Setting(
        flag="replication-max-live-lag",
        key="replication.max-live-lag",
        kind=INTEGER,
        default=10_000,
        at_least=1,
        zero_is_default=True,
    ),
    Setting(
        flag="replication-min-lag-reconnect-interval",
        key="replication.min-lag-reconnect-interval",
        kind=DURATION,
        default=30_000,
    ),
    Setting(
        flag="journal-max-size",
        key="journal.max-size",
        aliases=("journal.limits.size",),
        kind=SIZE,
        at_least=4096,
        zero_is_off=True,
    ),
    Setting(flag="insecure-dev", key="insecure-dev", kind=SWITCH, default=False),
    Setting(flag="port", key="port", kind=PORT, default=8089),
    Setting(flag="http-listen", key="http.listen", kind=LISTEN, default=":8080"),
    Setting(flag="interfaces", key="interfaces", kind=NAMES, default=()),
    Setting(flag="peer", key="peer", kind=one_of("auto", "lplex"), default="auto"),
    Setting(flag="mdns", key="mdns", kind=SWITCH, no_effect="there is no mDNS", unless=False),
    Setting(flag="send-enabled", key="send.enabled", kind=SWITCH, default=False, refused="send with another program"),
    Setting(flag="slots", key="clients.slots", kind=ANYTHING, no_effect="readers reserve nothing", file_only=True),
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


def load(*arguments: str, file: Path | None = None, **environment: str) -> Loaded:
    return load_settings(SETTINGS, arguments=arguments, environment=environment, file=file)


def from_file(tmp_path: Path, text: str) -> Loaded:
    file = tmp_path / "some.conf"
    file.write_text(text)
    return load(file=file)


def test_the_seeds_file_is_read_verbatim(seed_file: Path) -> None:
    loaded = load(file=seed_file)
    assert loaded.problems == []
    assert loaded.values["replication-target"] == "lplex.example.com:9443"
    assert loaded.values["replication-instance-id"] == "boat-001"
    assert loaded.values["replication-tls-cert"] == "/etc/lplex-server/boat-001.crt"
    assert loaded.values["replication-max-live-lag"] == 10_000


def test_a_flag_beats_the_environment_which_beats_the_file(seed_file: Path) -> None:
    loaded = load(
        "-replication-target",
        "flag:1",
        file=seed_file,
        TIDELOG_REPLICATION_TARGET="env:1",
        TIDELOG_REPLICATION_INSTANCE_ID="boat-002",
    )
    values = loaded.values
    assert (values["replication-target"], values["replication-instance-id"]) == ("flag:1", "boat-002")
    assert loaded.named("replication-target") == "-replication-target"
    assert loaded.named("replication-instance-id") == "TIDELOG_REPLICATION_INSTANCE_ID"
    assert loaded.named("replication-tls-cert") == f"replication.tls.cert in {seed_file}"
    assert loaded.named("port") == "-port"


@pytest.mark.parametrize(
    "arguments",
    [
        ["-replication-max-live-lag", "5"],
        ["--replication-max-live-lag", "5"],
        ["-replication-max-live-lag=5"],
        ["--replication-max-live-lag=5"],
        ["-replication-max-live-lag=4", "-replication-max-live-lag=5"],
    ],
)
def test_one_dash_or_two_with_or_without_an_equals_sign_and_the_last_wins(arguments: list[str]) -> None:
    assert load(*arguments).values["replication-max-live-lag"] == 5


def test_durations_sizes_lists_and_switches_are_parsed() -> None:
    values = load(
        "-replication-min-lag-reconnect-interval=500ms",
        "-journal-max-size=2MiB",
        "-insecure-dev",
        "-interfaces=can0, can1,",
    ).values
    assert values["replication-min-lag-reconnect-interval"] == 500
    assert values["journal-max-size"] == 2 * 1024 * 1024
    assert values["insecure-dev"] is True
    assert values["interfaces"] == ("can0", "can1")
    assert load("-insecure-dev", "false").values["insecure-dev"] is False
    iso = load("-replication-min-lag-reconnect-interval", "PT1M30S").values
    assert iso["replication-min-lag-reconnect-interval"] == 90_000


def test_zero_can_mean_off_or_the_default() -> None:
    values = load("-journal-max-size", "0", "-replication-max-live-lag", "0").values
    assert (values["journal-max-size"], values["replication-max-live-lag"]) == (None, 10_000)


def test_what_is_empty_counts_as_not_set_but_an_empty_flag_takes_away(tmp_path: Path, seed_file: Path) -> None:
    empty = from_file(tmp_path, 'replication { target = "", max-live-lag = null, tls {} }\ninterfaces = []')
    assert empty.problems == []
    assert empty.given == {}
    assert load(TIDELOG_INSECURE_DEV="", TIDELOG_PORT="").given == {}
    assert load("-replication-target=", file=seed_file).values["replication-target"] is None
    assert "-replication-max-live-lag = '' is not a whole number" in load("-replication-max-live-lag=").problems


def test_ports_and_addresses_can_be_off() -> None:
    assert load("-port", "0").values["port"] == 0
    for text in ("off", ""):
        loaded = load("-port", text, "-http-listen", text)
        assert (loaded.problems, loaded.values["port"], loaded.values["http-listen"]) == ([], None, None)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":80", ("", 80)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("[::1]:9443", ("::1", 9443)),
        ("a-b.example.com:65535", ("a-b.example.com", 65535)),
    ],
)
def test_addresses_are_split(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "localhost",
        "",
        ":",
        "host:",
        "host:http",
        "host:65536",
        "host:-1",
        "::1:80",
        "[::1]",
        "[x]:80",
        "https://h:80",
        "a b:1",
    ],
)
def test_what_is_no_address_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match=r"port|colon|bracket|host"):
        split_address(text)


def test_a_target_needs_host_and_port() -> None:
    for text in (":9443", "cloud:0"):
        assert load("-replication-target", text).problems


def test_values_out_of_bounds_and_unknown_words_are_said() -> None:
    problems = load(
        "-journal-max-size=5", "-replication-max-live-lag=-1", "-port=70000", "-peer=other", "-http-listen=here"
    ).problems
    assert [problem.split(" ", 1)[0] for problem in problems] == [
        "-journal-max-size",
        "-replication-max-live-lag",
        "-port",
        "-peer",
        "-http-listen",
    ]
    assert "or 0 for no limit" in problems[0]
    assert "one of auto, lplex" in problems[3]
    assert "write it like here:9443" in problems[4]


def test_everything_that_is_wrong_is_said_at_once_with_the_nearest_name(tmp_path: Path) -> None:
    file = tmp_path / "boat.conf"
    file.write_text('replication { targett = "x", max-live-lag = many }')
    loaded = load(
        "-replication-traget",
        "-insecure-dev=perhaps",
        "stray",
        file=file,
        TIDELOG_REPLICATION_TRAGET="x",
        TIDELOG_OTHER="y",
    )
    with pytest.raises(InvalidConfig) as caught:
        loaded.raise_problems()
    text = str(caught.value)
    assert "did you mean replication.target?" in text
    assert "did you mean -replication-target?" in text
    assert f"replication.max-live-lag in {file} = 'many' is not a whole number" in text
    assert "-insecure-dev = 'perhaps' is not true or false" in text
    assert "stray is unknown" in text
    assert "TIDELOG_REPLICATION_TRAGET is unknown; did you mean TIDELOG_REPLICATION_TARGET?" in text
    assert len(loaded.problems) == 6


def test_variables_of_other_commands_are_no_slips() -> None:
    loaded = load_settings(
        SETTINGS, arguments=[], environment={"TIDELOG_PORTS": "1"}, other_variables=["TIDELOG_PORTS"]
    )
    assert loaded.problems == []


def test_an_unknown_flag_takes_its_value_with_it() -> None:
    assert load("-replication-traget", "cloud:1").problems == [
        "-replication-traget is unknown; did you mean -replication-target?"
    ]


@pytest.mark.parametrize("arguments", [["-replication-target"], ["-replication-target", "-insecure-dev"]])
def test_a_flag_without_its_value_is_said(arguments: list[str]) -> None:
    assert load(*arguments).problems == ["-replication-target needs a value: host:port"]


def test_files_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in load(file=tmp_path / "nowhere.conf").problems[0]
    assert "cannot be read: Is a directory" in load(file=tmp_path).problems[0]
    assert "is not HOCON" in from_file(tmp_path, "replication { target = ").problems[0]
    (tmp_path / "binary.conf").write_bytes(b"\xff\xfe\x00a = 1")
    assert "is not HOCON" in load(file=tmp_path / "binary.conf").problems[0]
    assert "is not HOCON" in from_file(tmp_path, "port = ${nowhere}").problems[0]


def test_files_may_include_and_substitute(tmp_path: Path, seed_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_PORT", "1234")
    loaded = from_file(tmp_path, f'include "{seed_file.name}"\nport = ${{SOME_PORT}}\npeer = ${{?NOWHERE}}')
    assert loaded.problems == []
    assert loaded.values["port"] == 1234
    assert loaded.values["replication-instance-id"] == "boat-001"


def test_an_alias_is_the_same_setting_and_both_at_once_are_a_problem(tmp_path: Path) -> None:
    assert from_file(tmp_path, "journal.limits.size = 1 MiB").values["journal-max-size"] == 1024 * 1024
    both = from_file(tmp_path, "journal { max-size = 1MiB, limits.size = 2MiB }")
    assert "are the same setting; keep one" in both.problems[0]


def test_lists_and_numbers_of_a_file_are_taken_where_they_fit(tmp_path: Path) -> None:
    loaded = from_file(tmp_path, 'interfaces = ["can0", can1]\nclients.slots = [{id = a}, {id = b}]\nport = 1e3')
    assert loaded.problems == []
    assert (loaded.values["interfaces"], loaded.values["port"]) == (("can0", "can1"), 1000)
    assert [reason for _, reason in loaded.without_effect] == ["readers reserve nothing"]
    assert "is a list; it must be a port" in from_file(tmp_path, "port = [1, 2]").problems[0]


def test_what_only_a_file_or_only_a_flag_may_say_is_unknown_elsewhere(tmp_path: Path) -> None:
    assert "-slots is unknown" in load("-slots", "x").problems[0]
    assert "config in" in from_file(tmp_path, "config = x").problems[0]


def test_a_setting_without_effect_is_named_when_it_was_given_and_differs_from_how_things_are() -> None:
    assert load().without_effect == []
    assert load("-mdns=false").without_effect == []
    assert load("-mdns").without_effect == [("-mdns", "there is no mDNS")]
    assert load(TIDELOG_MDNS="true").without_effect == [("TIDELOG_MDNS", "there is no mDNS")]


def test_a_refused_setting_is_a_problem_unless_it_says_what_is_so_anyway() -> None:
    assert load("-send-enabled=false").problems == []
    assert load("-send-enabled").problems == ["-send-enabled is not supported: send with another program"]
