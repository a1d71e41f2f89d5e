"""The metrics of seed 001: names, order, numbers and labels, to the letter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.core.replication.metrics import (
    OVERFLOW,
    ReplicationMetricsRegistry,
    escaped,
    seconds_text,
)

NAMES = [
    ("dataforts_replication_lag_seconds", "gauge"),
    ("dataforts_replication_sync_bytes_total", "counter"),
    ("dataforts_leader_changes_total", "counter"),
    ("dataforts_replication_under_capacity_total", "counter"),
    ("dataforts_replication_skip_ahead_total", "counter"),
    ("dataforts_replication_election_thrash_total", "counter"),
    ("dataforts_replication_witness_withdrawals_total", "counter"),
    ("dataforts_replication_announce_divergence_total", "counter"),
    ("tidelog_replication_lag_records", "gauge"),
    ("tidelog_replication_lag_bytes", "gauge"),
]


def text_of(registry: ReplicationMetricsRegistry) -> str:
    return registry.snapshot().prometheus_text()


def values(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_every_name_is_announced_in_order_even_without_channels() -> None:
    text = text_of(ReplicationMetricsRegistry())
    types = [tuple(line.split()[2:]) for line in text.splitlines() if line.startswith("# TYPE ")]
    helps = [line.split()[2] for line in text.splitlines() if line.startswith("# HELP ")]
    assert types == NAMES
    assert helps == [name for name, _ in NAMES]
    assert values(text) == []
    assert text.endswith("\n")


def test_nothing_is_said_while_replication_is_off() -> None:
    registry = ReplicationMetricsRegistry(enabled=False)
    registry.channel("a").leader_changes += 1
    assert text_of(registry) == ""
    registry.enable()
    registry.enable()
    assert 'dataforts_leader_changes_total{channel="a"} 1' in text_of(registry)


def test_the_whole_text_of_two_channels() -> None:
    registry = ReplicationMetricsRegistry()
    second = registry.channel("b")
    first = registry.channel("a")
    first.observe_leader(silence_us=250_000, records=3, byte_count=96)
    second.observe_replica(silence_us=1_000_001, records=0, byte_count=0)
    first.sync_bytes += 1 << 40
    first.leader_changes += 1
    second.under_capacity += 2
    second.skip_ahead += 3
    second.election_thrash += 4
    second.announce_divergence += 5
    assert values(text_of(registry)) == [
        'dataforts_replication_lag_seconds{channel="a",role="leader"} 0.25',
        'dataforts_replication_lag_seconds{channel="b",role="replica"} 1.000001',
        'dataforts_replication_sync_bytes_total{channel="a"} 1099511627776',
        'dataforts_replication_sync_bytes_total{channel="b"} 0',
        'dataforts_leader_changes_total{channel="a"} 1',
        'dataforts_leader_changes_total{channel="b"} 0',
        'dataforts_replication_under_capacity_total{channel="a"} 0',
        'dataforts_replication_under_capacity_total{channel="b"} 2',
        'dataforts_replication_skip_ahead_total{channel="a"} 0',
        'dataforts_replication_skip_ahead_total{channel="b"} 3',
        'dataforts_replication_election_thrash_total{channel="a"} 0',
        'dataforts_replication_election_thrash_total{channel="b"} 4',
        'dataforts_replication_witness_withdrawals_total{channel="a"} 0',
        'dataforts_replication_witness_withdrawals_total{channel="b"} 0',
        'dataforts_replication_announce_divergence_total{channel="a"} 0',
        'dataforts_replication_announce_divergence_total{channel="b"} 5',
        'tidelog_replication_lag_records{channel="a",role="leader"} 3',
        'tidelog_replication_lag_records{channel="b",role="replica"} 0',
        'tidelog_replication_lag_bytes{channel="a",role="leader"} 96',
        'tidelog_replication_lag_bytes{channel="b",role="replica"} 0',
    ]


def test_a_lag_is_absent_until_it_was_observed_and_after_the_role_ended() -> None:
    registry = ReplicationMetricsRegistry()
    metrics = registry.channel("a")
    assert "lag_seconds{" not in text_of(registry)
    metrics.observe_leader(silence_us=1, records=0, byte_count=0)
    metrics.observe_replica(silence_us=2, records=0, byte_count=0)
    shown = [line for line in values(text_of(registry)) if "lag_seconds" in line]
    assert shown == ['dataforts_replication_lag_seconds{channel="a",role="replica"} 0.000002'], "one role at a time"
    metrics.observe_nothing()
    assert "lag_" not in "".join(values(text_of(registry)))


def test_a_lag_is_never_negative() -> None:
    registry = ReplicationMetricsRegistry()
    registry.channel("a").observe_replica(silence_us=-5, records=-1, byte_count=-9)
    shown = [line for line in values(text_of(registry)) if "lag_" in line]
    assert [line.rsplit(" ", 1)[1] for line in shown] == ["0", "0", "0"]


def test_a_channel_has_one_set_of_counters_until_it_is_forgotten() -> None:
    registry = ReplicationMetricsRegistry()
    registry.channel("a").skip_ahead += 1
    assert registry.channel("a").skip_ahead == 1
    registry.forget("a")
    registry.forget("never seen")
    assert values(text_of(registry)) == []
    assert registry.channel("a").skip_ahead == 0


def test_channels_beyond_1024_share_the_overflow() -> None:
    registry = ReplicationMetricsRegistry()
    for number in range(1_024):
        registry.channel(f"c{number}").leader_changes += 1
    first, second = registry.channel("late one"), registry.channel("late two")
    assert first is second
    first.leader_changes += 1
    second.leader_changes += 1
    first.observe_leader(silence_us=1, records=1, byte_count=1)
    text = text_of(registry)
    assert f'dataforts_leader_changes_total{{channel="{OVERFLOW}"}} 2' in text
    assert "late" not in text
    assert f'{{channel="{OVERFLOW}",role' not in text, "a lag of many channels says nothing"
    assert len(registry.snapshot().channels) == 1_025
    assert registry.channel("c7").leader_changes == 1


def test_a_place_that_became_free_is_taken_by_the_next_channel() -> None:
    registry = ReplicationMetricsRegistry(channels_max=1)
    registry.channel("a")
    assert registry.channel("b").channel == OVERFLOW
    registry.forget("a")
    assert registry.channel("b").channel == "b"


def test_a_channel_named_like_the_overflow_makes_no_second_series() -> None:
    registry = ReplicationMetricsRegistry(channels_max=1)
    registry.channel(OVERFLOW).skip_ahead += 1
    registry.channel("a")
    registry.channel("b").skip_ahead += 1
    lines = values(text_of(registry))
    series = [line.rsplit(" ", 1)[0] for line in lines]
    assert len(series) == len(set(series))
    assert f'dataforts_replication_skip_ahead_total{{channel="{OVERFLOW}"}} 2' in lines


def test_a_snapshot_does_not_move() -> None:
    registry = ReplicationMetricsRegistry()
    registry.channel("a").sync_bytes += 1
    snapshot = registry.snapshot()
    registry.channel("a").sync_bytes += 1
    registry.channel("b")
    assert [(sample.channel, sample.sync_bytes) for sample in snapshot.channels] == [("a", 1)]


@pytest.mark.parametrize(
    ("time_us", "text"),
    [(0, "0"), (1, "0.000001"), (500_000, "0.5"), (1_000_000, "1"), (10_000_000, "10"), (1_230_000, "1.23")],
)
def test_seconds_have_up_to_six_decimals_and_no_trailing_zeros(time_us: int, text: str) -> None:
    assert seconds_text(time_us) == text


@given(time_us=st.integers(0, 2**70))
def test_seconds_say_exactly_the_microseconds(time_us: int) -> None:
    whole, _, rest = seconds_text(time_us).partition(".")
    assert int(whole) * 1_000_000 + int(rest.ljust(6, "0") or 0) == time_us
    assert not rest.endswith("0")


def test_labels_are_escaped() -> None:
    registry = ReplicationMetricsRegistry()
    registry.channel('a\\b"c\nd\re')
    assert r'dataforts_leader_changes_total{channel="a\\b\"c\nd\re"} 0' in values(text_of(registry))


@given(text=st.text())
def test_an_escaped_label_stays_on_its_line_and_can_be_read_back(text: str) -> None:
    written = escaped(text)
    assert "\n" not in written
    assert "\r" not in written
    letters, back = iter(written), ""
    for letter in letters:
        assert letter != '"'
        back += letter if letter != "\\" else {"\\": "\\", '"': '"', "n": "\n", "r": "\r"}[next(letters)]
    assert back == text
