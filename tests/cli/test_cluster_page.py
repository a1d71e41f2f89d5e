"""The line about channels in `tidelog cluster status`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.test_node_http import standing_well
from tidelog.cli.cluster.page import print_status


def shown(capsys: pytest.CaptureFixture[str], **changes: Any) -> str:
    status = standing_well()
    for node in status["nodes"]:
        node |= {"incarnation": 1, "host": "h", "session": True, "software": "0.1.0"}
    print_status(status | changes)
    return capsys.readouterr().out


def test_channels_in_trouble_are_counted_and_the_worst_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys)
    assert (
        "12 channels: 2 without a leader, 1 refuse writes for want of replicas, 3 under-replicated, 1 paused\n" in out
    )
    assert "channels without a leader wait for a holder of all their records" in out


def test_channels_that_are_well_take_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    well = dict.fromkeys(standing_well()["channels"], 0) | {"total": 1}
    out = shown(capsys, channels=well)
    assert "1 channel: all led, and in sync as many times as wanted\n" in out
    assert "without a leader" not in out


def test_a_cluster_without_channels_says_nothing_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert "channel" not in shown(capsys, channels=dict.fromkeys(standing_well()["channels"], 0))


def test_a_node_that_does_not_count_channels_is_shown_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert "channel" not in shown(capsys, channels=None)
