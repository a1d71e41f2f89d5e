"""Seed 001's fields, ranges and defaults; everything wrong said at once; nothing lost on the way to the catalog."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.core.catalog.channel_config import (
    NUMBER_MAX,
    BandwidthClass,
    ChannelConfig,
    ChannelRetention,
    FsyncPolicy,
    Placement,
    UnderCapacity,
)
from tidelog.core.replication.config import ColocationStrict, FileConfig, Pinned, ReplicationConfig, Standard
from tidelog.errors import InvalidConfig

CHAIN = "00000000000000ab"
NUMBER: Any = 5
NUMBERS: Any = [1]


def test_the_defaults_are_the_seeds_and_valid() -> None:
    config = ReplicationConfig.new()
    config.validate()
    assert config == ReplicationConfig()
    assert (config.factor, config.heartbeat_ms, config.replication_budget_fraction) == (3, 500, 0.5)
    assert config.placement == Standard()
    assert config.leader_pinned is None
    assert config.on_under_capacity is UnderCapacity.WITHDRAW
    assert FileConfig().replication is None


def test_a_config_reads_like_the_seeds() -> None:
    file = FileConfig().with_replication(ReplicationConfig.new().with_factor(3).with_heartbeat_ms(500))
    file.validate()
    assert file.replication == ReplicationConfig()
    assert file.to_channel_config().replicated
    assert not FileConfig().to_channel_config().replicated


def test_every_setting_can_be_chained_and_leaves_the_original_alone() -> None:
    before = ReplicationConfig.new()
    after = (
        before.with_factor(5)
        .with_placement(ColocationStrict())
        .with_placement_metadata({"scope:eu": "", "metadata.colocate-with-strict": CHAIN})
        .with_heartbeat_ms(100)
        .with_leader_pinned("n1")
        .with_on_under_capacity(UnderCapacity.EVICT_OLDEST)
        .with_replication_budget_fraction(1.0)
        .with_min_isr(3)
        .with_skip_threshold_bytes(1)
        .with_bandwidth_class(BandwidthClass.REALTIME)
    )
    after.validate()
    assert before == ReplicationConfig()
    assert after == ReplicationConfig(
        factor=5,
        placement=ColocationStrict(),
        placement_metadata=(("metadata.colocate-with-strict", CHAIN), ("scope:eu", "")),
        heartbeat_ms=100,
        leader_pinned="n1",
        on_under_capacity=UnderCapacity.EVICT_OLDEST,
        replication_budget_fraction=1.0,
        min_isr=3,
        skip_threshold_bytes=1,
        bandwidth_class=BandwidthClass.REALTIME,
    )
    file = (
        FileConfig()
        .with_persistent(False)
        .with_fsync(FsyncPolicy.INTERVAL, interval_ms=50)
        .with_retention_max_events(1)
        .with_retention_max_bytes(2)
        .with_retention_max_age_ms(3)
        .with_replication(after)
    )
    file.validate()
    stored = file.to_channel_config()
    assert stored.retention == ChannelRetention(max_events=1, max_bytes=2, max_age_ms=3)
    assert (stored.persistent, stored.fsync, stored.fsync_interval_ms) == (False, FsyncPolicy.INTERVAL, 50)
    assert file.with_fsync(FsyncPolicy.NEVER).fsync_interval_ms == 50


def test_chaining_judges_nothing() -> None:
    config = ReplicationConfig.new().with_factor(0).with_heartbeat_ms(-1).with_replication_budget_fraction(math.nan)
    assert config.factor == 0
    assert len(config.problems()) == 3


def test_the_pinned_list_wins_over_the_factor() -> None:
    config = ReplicationConfig.new().with_factor(7).with_placement(Pinned(["n1", "n2"]))
    assert config.effective_factor == 2
    assert config.with_placement(Standard()).effective_factor == 7
    assert config.placement == Pinned(("n1", "n2"))


@pytest.mark.parametrize("heartbeat_ms", [100, 500, 300_001, 2**64 - 1])
def test_a_heartbeat_has_no_upper_bound_below_2_to_64(heartbeat_ms: int) -> None:
    config = ReplicationConfig.new().with_heartbeat_ms(heartbeat_ms)
    config.validate()
    assert config.silence_ms == 3 * heartbeat_ms


@pytest.mark.parametrize("factor", [1, 16])
def test_the_ends_of_the_range_of_factors_are_in_it(factor: int) -> None:
    ReplicationConfig.new().with_factor(factor).validate()


@pytest.mark.parametrize("fraction", [5e-324, 1e-9, 0.5, 1.0, 1])
def test_every_fraction_above_0_up_to_1_can_be_used(fraction: float) -> None:
    config = ReplicationConfig.new().with_replication_budget_fraction(fraction)
    config.validate()
    assert 1 <= config.to_channel_config().replication_budget_ppm <= 1_000_000


@pytest.mark.parametrize(
    "fraction", [0.0, -0.0, -0.1, 1.000_000_1, 2, math.nan, math.inf, -math.inf, 10**400, "0.5", True]
)
def test_other_fractions_are_refused(fraction: Any) -> None:
    (problem,) = ReplicationConfig.new().with_replication_budget_fraction(fraction).problems()
    assert problem.startswith("replication_budget_fraction ")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"factor": 0}, "factor is 0"),
        ({"factor": 17}, "factor is 17"),
        ({"factor": 17, "placement": Pinned(["n1"])}, "factor is 17"),
        ({"factor": True}, "factor must be a whole number"),
        ({"factor": 3.0}, "factor must be a whole number"),
        ({"heartbeat_ms": 99}, "heartbeat_ms is 99"),
        ({"heartbeat_ms": 2**64}, "the most is"),
        ({"heartbeat_ms": "500"}, "heartbeat_ms must be a whole number"),
        ({"placement": Pinned([])}, "at least one node"),
        ({"placement": Pinned([f"n{number}" for number in range(17)])}, "the most is 16"),
        ({"placement": Pinned(["n2", "n1", "n2"])}, "'n2' more than once"),
        ({"placement": Pinned("n1")}, "a list of node ids"),
        ({"placement": Pinned(NUMBERS)}, "a list of node ids"),
        ({"placement": Pinned(NUMBER)}, "a list of node ids"),
        ({"placement": Pinned(["not a name"])}, "is not a node id"),
        ({"placement": Pinned(["n1"]), "leader_pinned": "n2"}, "leader_pinned 'n2' is not one of pinned_nodes"),
        ({"placement": "standard"}, "placement must be"),
        ({"placement": ColocationStrict()}, "strict colocation needs"),
        ({"placement_metadata": (("metadata.colocate-with", "AB"),)}, "16 lower-case hex digits"),
        ({"placement_metadata": {"scope:eu": ""}}, "with_placement_metadata"),
        ({"leader_pinned": 7}, "leader_pinned must be"),
        ({"on_under_capacity": "withdraw"}, "on_under_capacity must be"),
        ({"bandwidth_class": None}, "bandwidth_class must be"),
        ({"min_isr": 4}, "min_isr is 4"),
        ({"min_isr": 0}, "min_isr is 0"),
        ({"min_isr": "2"}, "min_isr must be"),
        ({"skip_threshold_bytes": 0}, "skip_threshold_bytes must be positive"),
    ],
)
def test_each_thing_that_is_wrong_is_said_in_words(changes: dict[str, Any], words: str) -> None:
    config = ReplicationConfig(**changes)
    problems = config.problems()
    assert len(problems) == 1, problems
    assert words in problems[0]
    with pytest.raises(InvalidConfig) as caught:
        config.validate()
    assert caught.value.problems == problems


def test_everything_wrong_is_said_at_once() -> None:
    wrong: Any = "many"
    replication = ReplicationConfig(
        factor=wrong,
        heartbeat_ms=1,
        replication_budget_fraction=math.inf,
        placement=Pinned(["n1", "n1"]),
        leader_pinned="n9",
        min_isr=9,
    )
    config = FileConfig(fsync_interval_ms=0, retention_max_bytes=-1, persistent=wrong, replication=replication)
    with pytest.raises(InvalidConfig) as caught:
        config.validate()
    assert caught.value.section == "file"
    assert len(caught.value.problems) == 9, caught.value.problems
    for word in (
        "factor",
        "heartbeat_ms",
        "fraction",
        "more than once",
        "'n9'",
        "min_isr",
        "fsync",
        "bytes",
        "persistent",
    ):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"retention_max_events": 0},
        {"retention_max_age_ms": 1.5},
        {"retention_max_bytes": 2**64},
        {"fsync": "always"},
        {"fsync_interval_ms": None},
        {"replication": 3},
    ],
)
def test_a_file_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    assert len(FileConfig(**changes).problems()) == 1


names = st.sampled_from(["n1", "n2", "n3", "n4"])
placements = st.one_of(
    st.just(Standard()),
    st.just(ColocationStrict()),
    st.lists(names, min_size=1, max_size=4, unique=True).map(Pinned),
)
numbers = st.integers(1, NUMBER_MAX)
replications = st.builds(
    ReplicationConfig,
    factor=st.integers(3, 16),
    placement=placements,
    placement_metadata=st.just((("metadata.colocate-with-strict", CHAIN), ("scope:eu", "x"))),
    heartbeat_ms=st.integers(100, NUMBER_MAX),
    on_under_capacity=st.sampled_from(UnderCapacity),
    replication_budget_fraction=st.integers(1, 1_000_000).map(lambda ppm: ppm / 1_000_000),
    min_isr=st.none() | st.just(1),
    skip_threshold_bytes=numbers,
    bandwidth_class=st.sampled_from(BandwidthClass),
)
files = st.builds(
    FileConfig,
    persistent=st.booleans(),
    fsync=st.sampled_from(FsyncPolicy),
    fsync_interval_ms=numbers,
    retention_max_events=st.none() | numbers,
    retention_max_bytes=st.none() | numbers,
    retention_max_age_ms=st.none() | numbers,
    replication=st.none() | replications,
)


@given(config=files)
def test_a_file_comes_back_from_the_catalog_as_it_was(config: FileConfig) -> None:
    config.validate()
    stored = config.to_channel_config()
    assert stored.problems() == [], "CF1"
    assert FileConfig.from_channel_config(stored) == config
    assert FileConfig.from_channel_config(stored).to_channel_config() == stored
    if config.replication is not None:
        assert stored.effective_factor == config.replication.effective_factor


@given(fraction=st.floats(0, 1, exclude_min=True))
def test_a_fraction_is_kept_to_a_millionth_and_never_becomes_zero(fraction: float) -> None:
    config = ReplicationConfig.new().with_replication_budget_fraction(fraction)
    config.validate()
    back = ReplicationConfig.from_channel_config(config.to_channel_config())
    assert back is not None
    assert back.replication_budget_fraction > 0
    assert abs(back.replication_budget_fraction - fraction) <= 1e-6


anything = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
)


@given(values=st.dictionaries(st.sampled_from(list(ReplicationConfig.__dataclass_fields__)), anything))
def test_no_value_of_any_type_breaks_the_judgement(values: dict[str, Any]) -> None:
    config = ReplicationConfig(**values)
    if config.problems():
        with pytest.raises(InvalidConfig):
            config.validate()
    else:
        assert config.to_channel_config().problems() == []


def test_the_rest_of_a_channels_config_is_kept_when_replication_is_laid_over_it() -> None:
    base = ChannelConfig(persistent=False, retention=ChannelRetention(max_bytes=5), replicated=False)
    over = ReplicationConfig.new().with_placement(Pinned(["n1", "n2"])).to_channel_config(base)
    assert (over.persistent, over.retention, over.replicated) == (False, base.retention, True)
    assert (over.placement, over.pinned_nodes) == (Placement.PINNED, ("n1", "n2"))
    assert ReplicationConfig.from_channel_config(base) is None
