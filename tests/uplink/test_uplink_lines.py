"""What the log of a node says of boats: one line for each change, and nothing of what is routine."""

from __future__ import annotations

import pytest

from tidelog.cluster.uplink.log_lines import BoatLines
from tidelog.cluster.uplink.refusals import ROUTINE
from tidelog.core.uplink.messages import Refused


def refused(code: str, detail: str = "why") -> Refused:
    return Refused(session=1, code=code, detail=detail)


def test_refusals_of_one_kind_are_one_line_and_are_counted_until_the_boat_is_back() -> None:
    said: list[str] = []
    lines = BoatLines(said.append)
    lines.connected("tug", session=1, head=5, cursor=5, now_ms=0)
    for at_ms in (1_000, 2_000, 3_000):
        lines.refused("tug", refused("certificate_revoked", "it was stolen"), now_ms=at_ms)
    lines.connected("tug", session=2, head=9, cursor=5, now_ms=61_000)
    lines.connected("tug", session=3, head=9, cursor=9, now_ms=62_000)
    assert said == [
        "boat connected name=tug session=1 head=5 cursor=5",
        "boat revoked name='tug' code=certificate_revoked reason='it was stolen'",
        "boat recovered name=tug session=2 head=9 cursor=5 refused=certificate_revoked refusals=3 seconds=60",
        "boat connected name=tug session=3 head=9 cursor=9",
    ]


@pytest.mark.parametrize("code", sorted(ROUTINE))
def test_an_end_of_a_session_at_which_nothing_is_wrong_is_no_refusal(code: str) -> None:
    said: list[str] = []
    lines = BoatLines(said.append)
    lines.refused("tug", refused(code), now_ms=0)
    lines.connected("tug", session=2, head=9, cursor=9, now_ms=1_000)
    assert said == ["boat connected name=tug session=2 head=9 cursor=9"]
