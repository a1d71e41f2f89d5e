"""The page of all signals is written from the decoder, and it is the one that the docs have."""

from __future__ import annotations

from pathlib import Path

from tidelog.cli.signals_page import render_signals_page
from tidelog.pipeline.gold.columns import ELECTRICAL, ENGINE, ENVIRONMENT, NAVIGATION, TANKS, signal_names

PAGE = Path(__file__).parents[2] / "docs" / "signals.md"


def test_the_page_of_signals_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render_signals_page(), (
        "write it anew: python -m tidelog.cli.signals_page > docs/signals.md"
    )


def test_the_page_names_signals_with_unit_and_pgn() -> None:
    of_pgn = dict(part.split("\n", 1) for part in render_signals_page().split("\n## ")[1:])
    assert "| `fluid_level.level` | ratio | number |" in of_pgn["127505"]
    assert "| `fluid_level.instance` |  | number, `instance` |" in of_pgn["127505"]
    assert "| `ais_class_a_static_and_voyage_related_data.destination` |  | text |" in of_pgn["129794"]
    assert "| `navigation_route_wp_information.wp_name.N` |  | text |" in of_pgn["129285"]
    assert "reserved" not in of_pgn["127505"]
    named = "".join(of_pgn.values())
    wanted = signal_names((*ENGINE, *ELECTRICAL, *ENVIRONMENT, *NAVIGATION, *TANKS))
    assert [name for name in wanted if f"| `{name}` |" not in named] == []
