"""`tidelog pipeline report`: one HTML page about the fleet that needs no network and no server.

The plots are plotly's and its script is inside the page, once. Without JavaScript the page shows the tables. Sections
without data say so.

PE1  The page names no address outside itself.
PE2  A channel may be called anything; its name is text and never markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path
from typing import Any, Final

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from tidelog.pipeline.report import plots
from tidelog.pipeline.report.data import DAYS_MAX, ReportData, Row, read_report_data
from tidelog.pipeline.tables import DELTA
from tidelog.pki.files import translated

TRIPS_SHOWN_MAX: Final = 50
MAPS_SHOWN_MAX: Final = 12

_PLOT_CONFIG: Final = {
    "displaylogo": False,
    "responsive": True,
    # The one button of the library that would send data away (PE1), and two that do nothing here.
    "modeBarButtonsToRemove": ["sendChartToCloud", "select2d", "lasso2d"],
}

_STYLE: Final = """\
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, sans-serif; color: #1c2733; background: #fff; max-width: 1180px; margin: 0 auto;
  padding: 24px 20px 60px; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 19px; margin: 36px 0 8px; border-bottom: 1px solid #d5dde5; padding-bottom: 4px; }
p { max-width: 75ch; margin: 6px 0; }
.quiet { color: #5a6b7b; }
.none { background: #f4f6f8; border-left: 3px solid #b6c2cd; padding: 8px 12px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 8px 0; }
th, td { padding: 4px 9px; text-align: right; border-bottom: 1px solid #e4eaef; white-space: nowrap; }
th { white-space: normal; font-weight: 600; color: #3b4b5a; background: #f4f6f8; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
.maps { display: grid; grid-template-columns: repeat(auto-fill, minmax(360px, 1fr)); gap: 8px; }
.swatch { display: inline-block; width: 10px; height: 10px; border-radius: 5px; margin-right: 7px; }
"""


def write_report(
    tables: Path, path: Path, *, table_format: str = DELTA, days_max: int = DAYS_MAX, now: datetime | None = None
) -> ReportData:
    """Write the page to `path`, whole or not at all; returns the data it shows."""
    data = read_report_data(tables, table_format=table_format, days_max=days_max)
    text = render_report(data, now=now or datetime.now(UTC))
    fresh = path.with_name(f".{path.name}.part")
    with translated("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    return data


def render_report(data: ReportData, *, now: datetime) -> str:
    """The page as text."""
    page = _Page(data)
    days = f"{data.first_day} to {data.last_day}" if data.last_day else "no days yet"
    boats = f"{len(data.boats)} boat{'' if len(data.boats) == 1 else 's'}"
    page.add(
        f"<h1>Fleet report</h1><p class=quiet>{boats}, {days}, made {now:%Y-%m-%d %H:%M} UTC. All times are UTC.</p>"
    )
    page.add("<noscript><p class=none>The plots need JavaScript; the tables do not.</p></noscript>")
    page.section("Summary", _summary(data), "No boat has any data in the gold tables yet. Run the pipeline first.")
    page.plot("Tracks", plots.fleet_map(data), "No positions were received.")
    if len(data.boats) > 1:
        page.maps([boat for boat in data.boats if data.tracks[boat]][:MAPS_SHOWN_MAX])
    page.section("Trips", _trips(data), "No trips were found: no boat was under way for a minute or more.")
    page.plot("Wind", plots.wind(data), "No wind was measured.")
    page.plot("Depth", plots.depth(data), "No depth was measured.")
    page.plot("Engines", plots.engine_speed(data), "No engine has said anything.")
    page.plot(None, plots.engine_temperature(data), None)
    page.plot("Batteries", plots.battery(data), "No battery has said anything.")
    page.plot("Coverage", plots.coverage_strips(data), "No frames are held yet.")
    page.plot(
        "Lag",
        plots.lag(data),
        "No frames came live with a clock that can be believed; replays of old captures have no lag.",
    )
    return page.text()


class _Page:
    """Collects the parts of the page. Plots get numbers as names, so equal data gives an equal page."""

    def __init__(self, data: ReportData) -> None:
        self._data = data
        self._parts: list[str] = []
        self._plots = 0

    def add(self, part: str) -> None:
        self._parts.append(part)

    def section(self, title: str, table: str | None, otherwise: str) -> None:
        self.add(f"<h2>{escape(title)}</h2>")
        self.add(f"<div class=wide>{table}</div>" if table else f"<p class=none>{escape(otherwise)}</p>")

    def plot(self, title: str | None, figure: go.Figure | None, otherwise: str | None) -> None:
        if title is not None:
            self.add(f"<h2>{escape(title)}</h2>")
        if figure is not None:
            self.add(self._drawn(figure))
        elif otherwise is not None:
            self.add(f"<p class=none>{escape(otherwise)}</p>")

    def maps(self, boats: Sequence[str]) -> None:
        """A small map of every boat."""
        self.add("<div class=maps>")
        for boat in boats:
            figure = plots.boat_map(self._data, boat)
            if figure is not None:
                self.add(self._drawn(figure))
        self.add("</div>")

    def text(self) -> str:
        head = (
            f"<meta charset=utf-8><title>Fleet report</title><style>\n{_STYLE}</style><script>{get_plotlyjs()}</script>"
        )
        parts = "\n".join(self._parts)
        return f"<!doctype html>\n<html lang=en><head>{head}</head><body>\n{parts}\n</body></html>\n"

    def _drawn(self, figure: go.Figure) -> str:
        self._plots += 1
        drawn: str = figure.to_html(
            full_html=False,
            include_plotlyjs=False,
            div_id=f"plot-{self._plots}",
            config=_PLOT_CONFIG,
        )
        return drawn


def _summary(data: ReportData) -> str | None:
    if not data.boats:
        return None
    heads = (
        "boat",
        "frames held",
        "missing",
        "lost",
        "coverage %",
        "by backfill %",
        "live lag, s",
        "miles",
        "trips",
        "strongest wind, kn",
        "least depth, m",
        "engine hours",
    )
    return _table(heads, [_summary_cells(data, boat) for boat in data.boats])


def _summary_cells(data: ReportData, boat: str) -> list[str]:
    health = data.health[boat]
    held, holes, lost, backfill = (sum(row[name] for row in health) for name in ("held", "holes", "lost", "backfill"))
    lags = sorted(row["live_lag_p50_s"] for row in health if row["live_lag_p50_s"] is not None)
    winds = _known(data.environment[boat], "true_wind_mps_max") or _known(
        data.environment[boat], "apparent_wind_mps_max"
    )
    depths = _known(data.environment[boat], "depth_m_min")
    seconds = _known(data.engine[boat], "running_seconds")
    swatch = f'<span class=swatch style="background:{plots.colour_of(data, boat)}"></span>'
    return [
        swatch + escape(boat),
        f"{held:,}",
        f"{holes:,}",
        f"{lost:,}",
        _number(100 * held / (held + holes + lost) if held else None, 2),
        _number(100 * backfill / held if held else None, 1),
        _number(lags[len(lags) // 2] if lags else None, 2),
        _number(data.miles.get(boat), 1),
        str(len(data.trips[boat])),
        _number(max(winds) * plots.KNOTS_PER_MPS if winds else None, 1),
        _number(min(depths, default=None), 1),
        _number(sum(seconds) / 3600 if seconds else None, 1),
    ]


def _trips(data: ReportData) -> str | None:
    newest = sorted(
        (row for rows in data.trips.values() for row in rows), key=lambda row: row["start_time"], reverse=True
    )
    if not newest:
        return None
    heads = ("boat", "left (UTC)", "arrived (UTC)", "hours", "from", "to", "miles", "fastest, kn", "engine hours")
    table = _table(heads, [_trip_cells(row) for row in newest[:TRIPS_SHOWN_MAX]])
    if len(newest) <= TRIPS_SHOWN_MAX:
        return table
    left_out = f"The newest {TRIPS_SHOWN_MAX} of {len(newest)} trips; the table trips has them all."
    return f"{table}<p class=quiet>{left_out}</p>"


def _trip_cells(row: Row) -> list[str]:
    took: timedelta = row["end_time"] - row["start_time"]
    return [
        escape(row["channel"]),
        f"{row['start_time']:%Y-%m-%d %H:%M}",
        f"{row['end_time']:%Y-%m-%d %H:%M}" if row["ended"] else "under way",
        _number(took / timedelta(hours=1), 1),
        _place(row["start_latitude"], row["start_longitude"]),
        _place(row["end_latitude"], row["end_longitude"]),
        _number(row["miles"], 1),
        _number(row["speed_max_mps"] * plots.KNOTS_PER_MPS, 1),
        _number(row["engine_hours"], 1),
    ]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table. Headings are constant, cells are already escaped."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>" for cells in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _known(rows: Sequence[Row], column: str) -> list[Any]:
    return [row[column] for row in rows if row[column] is not None]


def _number(value: float | None, places: int) -> str:
    return "\u2013" if value is None else f"{value:,.{places}f}"


def _place(latitude: float, longitude: float) -> str:
    """Degrees and minutes, as on a chart."""
    return f"{_degrees(latitude, 'N', 'S')} {_degrees(longitude, 'E', 'W')}"


def _degrees(value: float, positive: str, negative: str) -> str:
    whole, minutes = divmod(round(abs(value) * 60, 2), 60)
    return f"{int(whole)}\u00b0{minutes:05.2f}\u2032{positive if value >= 0 else negative}"
