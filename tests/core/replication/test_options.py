"""The settings of replication of a node."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tidelog.core.replication.options import ReplicationOptions
from tidelog.errors import InvalidConfig


def test_the_defaults_are_what_the_documentation_says() -> None:
    options = ReplicationOptions()
    assert options.replica_max_idle_wait_ms == 10_000
    assert options.replica_max_lag_ms == 5_000
    assert options.replica_max_leader_timeout_ms == 5_000


@pytest.mark.parametrize("name", [field.name for field in fields(ReplicationOptions)])
def test_everything_must_be_positive(name: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        ReplicationOptions(**{name: 0})
    assert f"{name} must be positive" in str(caught.value)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InvalidConfig) as caught:
        ReplicationOptions(repeat_ms=0, retry_ms=-1, tail_bytes_max=100, tails_bytes_max=99)
    assert len(caught.value.problems) == 3
    assert "tails_bytes_max must be at least tail_bytes_max" in caught.value.problems
