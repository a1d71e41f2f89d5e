"""The report: one page, whole without a network, honest about what is not there."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from plotly.offline import get_plotlyjs

from tidelog.pipeline.gold.schemas import (
    ELECTRICAL_HOURS,
    ENGINE_HOURS,
    ENVIRONMENT_HOURS,
    FLEET_HEALTH,
    TRACKS,
    TRIPS,
    GoldLayout,
)
from tidelog.pipeline.report import plots
from tidelog.pipeline.report.data import read_report_data, thinned
from tidelog.pipeline.report.page import render_report, write_report
from tidelog.pipeline.tables import open_table
from tidelog.pipeline.tables.parquet_files import PartitionedWriter
from tidelog.pipeline.tables.table import TableStep

NOW = datetime(2026, 6, 3, 9, 30, tzinfo=UTC)
START = datetime(2026, 6, 1, tzinfo=UTC)
HOURS = 48
ODD_NAME = "</script><b>& co"


def fill(tables: Path, layout: GoldLayout, rows: list[dict[str, Any]], version: int = 1) -> None:
    """Put rows into a gold table, as the job would."""
    table = open_table(tables, layout.table)
    table.create()
    batch = pa.RecordBatch.from_pylist(rows, schema=layout.table.schema)
    with PartitionedWriter(table.folder, layout.table) as writer:
        writer.write_split(batch)
        files = writer.close()
    table.commit_following("test", [TableStep(upstream="signals", start=None, end=version)], files)


def measured(name: str, mean: float, swing: float) -> dict[str, float]:
    return {f"{name}_min": mean - swing, f"{name}_mean": mean, f"{name}_max": mean + swing}


def hours_of(boat: str, phase: float) -> dict[str, list[dict[str, Any]]]:
    """Two days of a boat: wind and depth that swing, an engine by day, a night that is only half held."""
    found: dict[str, list[dict[str, Any]]] = {"environment": [], "engine": [], "electrical": [], "health": []}
    for number in range(HOURS):
        hour = START + timedelta(hours=number)
        key = {"channel": boat, "day": hour.date(), "hour": hour}
        wave = math.sin(number / 5 + phase)
        found["environment"].append(
            key | measured("true_wind_mps", 8 + 4 * wave, 2) | measured("depth_m", 30 + 15 * wave, 6) | {"samples": 9}
        )
        if 8 <= hour.hour < 18:
            for instance in (0, 1):
                engine = measured("rpm", 1800 + 90 * instance, 60) | measured("coolant_temperature_c", 82 + wave, 2)
                found["engine"].append(key | engine | {"instance": instance, "running_seconds": 3600.0, "samples": 9})
        found["electrical"].append(key | measured("voltage_v", 12.8 + 0.4 * wave, 0.1) | {"instance": 0, "samples": 9})
        half = 20 <= hour.hour < 23
        found["health"].append(
            key
            | {"held": 360_000 if half else 720_000, "holes": 360_000 if half and number < 24 else 0}
            | {"lost": 360_000 if half and number >= 24 else 0, "coverage": 0.5 if half else 1.0}
            | {"live": 300_000, "backfill": 60_000, "publish": 0, "wrong_clock": 0}
            | {"lag_p50_s": 0.4, "lag_max_s": 9.0, "live_lag_p50_s": 0.4 + 0.1 * wave, "live_lag_max_s": 3 + wave}
        )
    return found


def track_of(boat: str, latitude: float, longitude: float, phase: float) -> list[dict[str, Any]]:
    rows = []
    for minute in range(HOURS * 60):
        time = START + timedelta(minutes=minute)
        turn = minute / 400 + phase
        for grain in ("second", "minute") if minute % 10 == 0 else ("minute",):
            rows.append(
                {
                    "channel": boat,
                    "day": time.date(),
                    "grain": grain,
                    "time": time,
                    "latitude": latitude + 0.4 * math.sin(turn) + 0.03 * math.sin(9 * turn),
                    "longitude": (longitude + 0.002 * minute * 0.5 + 180) % 360 - 180,
                    "speed_mps": 3.0 + math.sin(turn),
                    "course_deg": 80.0,
                    "distance_m": (minute % 1440) * 180.0,
                    "clock": "ok",
                }
            )
    return rows


def trip_of(boat: str, day: int, *, ended: bool = True) -> dict[str, Any]:
    start = START + timedelta(days=day, hours=8)
    return {
        "channel": boat,
        "day": start.date(),
        "start_time": start,
        "end_time": start + timedelta(hours=9, minutes=30),
        "start_latitude": 50.3656,
        "start_longitude": -4.1423,
        "end_latitude": 48.3833,
        "end_longitude": -4.495,
        "miles": 54.321,
        "speed_max_mps": 5.2,
        "engine_hours": 3.25,
        "ended": ended,
    }


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    boats = (("alba", 50.0, -5.0), ("brio", 50.4, -4.0), (ODD_NAME, -17.0, 179.0))
    parts = [hours_of(name, phase) for phase, (name, _, _) in enumerate(boats)]
    fill(folder, TRACKS, [row for phase, boat in enumerate(boats) for row in track_of(*boat, phase)])
    fill(folder, TRIPS, [trip_of("alba", 0), trip_of("brio", 0), trip_of("alba", 1, ended=False)])
    for layout, name in (
        (ENVIRONMENT_HOURS, "environment"),
        (ENGINE_HOURS, "engine"),
        (ELECTRICAL_HOURS, "electrical"),
        (FLEET_HEALTH, "health"),
    ):
        fill(folder, layout, [row for part in parts for row in part[name]])
    return folder


@pytest.fixture(scope="module")
def page(tables: Path) -> str:
    path = tables / "report.html"
    write_report(tables, path, now=NOW)
    return path.read_text(encoding="utf-8")


def without_library(page: str) -> str:
    assert page.count(get_plotlyjs()) == 1, "the library is in the page once"
    return page.replace(get_plotlyjs(), "")


def test_the_page_needs_nothing_from_outside(page: str) -> None:
    own = without_library(page)
    assert not re.search(r"(src|href)\s*=", own)
    assert "//cdn" not in own
    # The library has a button that sends the data away; every plot is told to leave it out.
    assert own.count('"sendChartToCloud"') == len(re.findall(r'id="plot-\d+"', own))


def test_a_reader_without_scripts_gets_the_tables(page: str) -> None:
    text = re.sub(r"<script.*?</script>", "", without_library(page), flags=re.DOTALL)
    assert "<noscript>" in text
    rows = re.findall(r"<tr>(.*?)</tr>", text)
    alba = next(row for row in rows if "swatch" in row and "alba" in row)
    cells = re.sub(r"<[^>]*>", "|", alba)
    # 42 whole hours and 6 half ones, of which three are holes and three lost.
    for expected in ("32,400,000", "1,080,000", "93.75", "8.9", "27.2", "9.1", "40.0"):
        assert expected in cells, (expected, cells)
    assert "50\u00b021.94\u2032N 4\u00b008.54\u2032W" in text
    assert "under way" in text


def test_an_hour_without_any_speed_of_the_engine_adds_nothing(tmp_path: Path) -> None:
    key = {"channel": "warm", "day": START.date(), "instance": 0, "samples": 9, **measured("oil_pressure_kpa", 4, 1)}
    rows = [
        key | {"hour": START + timedelta(hours=hour), "running_seconds": runs} for hour, runs in ((0, None), (1, 0))
    ]
    fill(tmp_path, ENGINE_HOURS, rows)
    page = render_report(read_report_data(tmp_path), now=START)
    (cells,) = (row for row in re.findall(r"<tr>(.*?)</tr>", page) if "swatch" in row)
    assert cells.endswith("<td>0.0</td>")


def test_every_section_has_its_plot_with_titles_and_units(page: str) -> None:
    own = without_library(page)
    for title in ("Summary", "Tracks", "Trips", "Wind", "Depth", "Engines", "Batteries", "Coverage", "Lag"):
        assert f"<h2>{title}</h2>" in own
    # A fleet map, three small ones, and wind, depth, two of engines, batteries, coverage, lag.
    assert len(re.findall(r'id="plot-\d+"', own)) == 11
    for axis in ("longitude (degrees)", "wind (knots)", "depth (m)", "engine speed (rpm)", "time (UTC)"):
        assert axis in own
    assert "class=none" not in own.replace("<noscript><p class=none>", "")


def test_a_boats_name_is_never_markup(page: str) -> None:
    assert ODD_NAME not in page
    assert "&lt;/script&gt;&lt;b&gt;&amp; co" in page
    # In the plots too, which would make the second half bold.
    assert r"\u003cb\u003e" not in without_library(page)


def test_the_same_data_gives_the_same_page(tables: Path, page: str) -> None:
    again = tables / "again" / "report.html"
    write_report(tables, again, now=NOW)
    assert again.read_text(encoding="utf-8") == page
    assert [one.name for one in again.parent.iterdir()] == ["report.html"]


def test_without_data_the_page_says_so(tmp_path: Path) -> None:
    data = write_report(tmp_path / "tables", tmp_path / "report.html", now=NOW)
    own = without_library((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert data.boats == []
    assert "No boat has any data in the gold tables yet" in own
    assert "No frames are held yet" in own
    assert 'id="plot-' not in own


def test_only_the_newest_days_are_read(tables: Path) -> None:
    data = read_report_data(tables, days_max=1)
    assert data.first_day == data.last_day == (START + timedelta(days=1)).date()
    assert len(data.health["alba"]) == 24
    assert len(data.tracks["alba"]) == 24 * 60


def test_a_long_track_is_thinned_and_keeps_its_ends() -> None:
    rows = [{"channel": boat, "time": number} for boat, length in (("a", 30), ("b", 5)) for number in range(length)]
    few = thinned(pa.Table.from_pylist(rows), points_max=10).to_pylist()
    assert [row["time"] for row in few if row["channel"] == "a"] == [0, 4, 8, 12, 16, 20, 24, 28, 29]
    assert [row for row in few if row["channel"] == "b"] == rows[30:]


def test_a_track_over_the_date_line_runs_on() -> None:
    assert plots.unwrapped([179.9, -179.9, -179.8, 179.9]) == pytest.approx([179.9, 180.1, 180.2, 179.9])


def test_no_line_is_drawn_over_hours_without_data() -> None:
    rows = [{"hour": START + timedelta(hours=hour)} for hour in (0, 1, 2, 5, 7, 8)]
    assert [len(run) for run in plots.runs(rows)] == [3, 1, 2]


@pytest.mark.parametrize(
    ("held", "holes", "lost", "kind"),
    [
        (9, 0, 0, plots.HELD),
        (9, 1, 0, plots.HOLES),
        (9, 1, 1, plots.LOST),
        (0, 9, 0, plots.NOTHING),
        (0, 0, 9, plots.LOST),
    ],
)
def test_an_hour_is_shown_as_its_worst(held: int, holes: int, lost: int, kind: str) -> None:
    assert plots.strip_kind({"held": held, "holes": holes, "lost": lost}) == kind
