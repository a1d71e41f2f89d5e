"""The plots of the report, one function each: rows in, a figure out, or None where there is nothing to draw.

Every axis has a title with its unit; all times are UTC. A boat has the same colour in every plot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from html import escape
from typing import Any, Final

import plotly.graph_objects as go

from tidelog.pipeline.report.data import ReportData, Row

KNOTS_PER_MPS: Final = 3600 / 1852
BOATS_DRAWN_MAX: Final = 40
"""More lines than this in one plot cannot be told apart; the tables have all boats."""
_STRIP_PX: Final = 30

# Okabe and Ito: can be told apart by the colour-blind too.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#332288")

HELD: Final = "everything held"
HOLES: Final = "holes, still to come"
LOST: Final = "frames lost for good"
NOTHING: Final = "nothing held"
_STRIP_COLOURS: Final = {HELD: "#009E73", HOLES: "#E69F00", LOST: "#B2182B", NOTHING: "#525252"}


def label(name: str) -> str:
    """A name as the plots show it: they take a few tags for markup."""
    return escape(name, quote=False)


def colour_of(data: ReportData, boat: str) -> str:
    return _COLOURS[data.boats.index(boat) % len(_COLOURS)]


def fleet_map(data: ReportData) -> go.Figure | None:
    """All tracks on plain axes of latitude and longitude, a mile as long north as east."""
    figure = go.Figure()
    for boat in _drawn(data, data.tracks):
        rows = data.tracks[boat]
        longitudes = unwrapped([row["longitude"] for row in rows])
        knots = [_times(row["speed_mps"], KNOTS_PER_MPS) for row in rows]
        hover = "%{text|%Y-%m-%d %H:%M} UTC<br>%{y:.4f}, %{x:.4f}<br>%{customdata:.1f} kn"
        figure.add_scatter(
            x=longitudes,
            y=[row["latitude"] for row in rows],
            text=[row["time"] for row in rows],
            customdata=knots,
            mode="lines",
            line={"color": colour_of(data, boat), "width": 2},
            name=label(boat),
            legendgroup=label(boat),
            hovertemplate=hover,
        )
        figure.add_scatter(
            x=longitudes[-1:],
            y=[rows[-1]["latitude"]],
            mode="markers+text",
            text=[label(boat)],
            textposition="top center",
            marker={"color": colour_of(data, boat), "size": 9},
            legendgroup=label(boat),
            showlegend=False,
            hoverinfo="skip",
            name=f"{label(boat)}, last position",
        )
    if not figure.data:
        return None
    latitudes = [row["latitude"] for rows in data.tracks.values() for row in rows]
    middle = (min(latitudes) + max(latitudes)) / 2
    figure.update_xaxes(title="longitude (degrees)")
    figure.update_yaxes(
        title="latitude (degrees)", scaleanchor="x", scaleratio=1 / max(0.1, math.cos(math.radians(middle)))
    )
    return _finished(figure, "Where the boats were, one position a minute or fewer", height=560)


def boat_map(data: ReportData, boat: str) -> go.Figure | None:
    """One boat's track alone: in a fleet that is spread over oceans it would be a dot on the map."""
    if not data.tracks[boat]:
        return None
    figure = fleet_map(replace(data, tracks={boat: data.tracks[boat]}))
    assert figure is not None
    figure.update_layout(title=label(boat), height=360, showlegend=False)
    return figure


def wind(data: ReportData) -> go.Figure | None:
    """Mean wind with the band from the calmest to the strongest reading of the hour."""

    def column(rows: Sequence[Row]) -> str:
        is_true = any(row["true_wind_mps_mean"] is not None for row in rows)
        return "true_wind_mps" if is_true else "apparent_wind_mps"

    title = "Wind by the hour: mean, and the band from minimum to maximum (true wind where known, else apparent)"
    return _hours(data, data.environment, column, title, "wind (knots)", factor=KNOTS_PER_MPS)


def depth(data: ReportData) -> go.Figure | None:
    """Depth below the transducer, downwards."""
    title = "Depth below the transducer by the hour: mean, and the band from minimum to maximum"
    figure = _hours(data, data.environment, lambda rows: "depth_m", title, "depth (m)")
    if figure is not None:
        figure.update_yaxes(autorange="reversed")
    return figure


def engine_speed(data: ReportData) -> go.Figure | None:
    title = "Engine speed by the hour: mean, and the band from minimum to maximum"
    return _hours(data, data.engine, lambda rows: "rpm", title, "engine speed (rpm)", instances="engine")


def engine_temperature(data: ReportData) -> go.Figure | None:
    title = "Engine coolant temperature by the hour"
    return _hours(
        data, data.engine, lambda rows: "coolant_temperature_c", title, "temperature (\u00b0C)", instances="engine"
    )


def battery(data: ReportData) -> go.Figure | None:
    title = "Battery voltage by the hour: mean, and the band from minimum to maximum"
    return _hours(data, data.electrical, lambda rows: "voltage_v", title, "voltage (V)", instances="battery")


def coverage_strips(data: ReportData) -> go.Figure | None:
    """One strip per boat, one cell per hour: what is held, what is missing, what is lost."""
    boats = _drawn(data, data.health)
    if not boats:
        return None
    figure = go.Figure()
    for kind, colour in _STRIP_COLOURS.items():
        bars: dict[str, list[Any]] = {"hour": [], "boat": [], "says": []}
        for boat in boats:
            for row in data.health[boat]:
                if strip_kind(row) == kind:
                    bars["hour"].append(row["hour"])
                    bars["boat"].append(label(boat))
                    bars["says"].append(_strip_text(row))
        if bars["hour"]:
            hour_ms = timedelta(hours=1) / timedelta(milliseconds=1)
            figure.add_bar(
                base=bars["hour"],
                x=[hour_ms] * len(bars["hour"]),
                y=bars["boat"],
                orientation="h",
                marker={"color": colour, "line": {"width": 0}},
                text=bars["says"],
                textposition="none",
                hovertemplate="%{y}<br>%{base|%Y-%m-%d %H:00} UTC<br>%{text}<extra></extra>",
                name=kind,
                width=0.7,
            )
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(title="time (UTC)", type="date")
    figure.update_yaxes(
        title="boat", type="category", categoryorder="array", categoryarray=[label(boat) for boat in reversed(boats)]
    )
    return _finished(figure, "What is held of every hour", height=170 + _STRIP_PX * len(boats))


def lag(data: ReportData) -> go.Figure | None:
    """Seconds from the bus to the log, for what came live."""
    figure = go.Figure()
    for boat in _drawn(data, data.health):
        rows = [row for row in data.health[boat] if row["live_lag_p50_s"] is not None]
        for column, dash, says in (("live_lag_p50_s", "solid", "median"), ("live_lag_max_s", "dot", "longest")):
            if rows:
                figure.add_scatter(
                    x=[row["hour"] for row in rows],
                    # A logarithmic axis has no zero.
                    y=[max(row[column], 0.001) for row in rows],
                    mode="lines+markers",
                    marker={"size": 4},
                    line={"color": colour_of(data, boat), "dash": dash},
                    name=f"{label(boat)}, {says}",
                    legendgroup=label(boat),
                )
    if not figure.data:
        return None
    figure.update_xaxes(title="time (UTC)")
    ticks = [digit * 10.0**power for power in range(-3, 7) for digit in (1, 2, 5)]
    figure.update_yaxes(
        title="seconds from bus to log", type="log", tickvals=ticks, ticktext=[f"{tick:,g}" for tick in ticks]
    )
    return _finished(figure, "Lag of live frames by the hour: median and longest")


def strip_kind(row: Row) -> str:
    """The category of an hour of `fleet_health`."""
    if not row["held"]:
        return LOST if row["lost"] and not row["holes"] else NOTHING
    if row["lost"]:
        return LOST
    return HOLES if row["holes"] else HELD


def unwrapped(longitudes: Sequence[float]) -> list[float]:
    """Longitudes that continue past 180 where a track crosses the date line, so that no line is drawn round the
    earth."""
    found: list[float] = []
    for longitude in longitudes:
        turn = 0.0 if not found else round((found[-1] - longitude) / 360) * 360.0
        found.append(longitude + turn)
    return found


def _hours(
    data: ReportData,
    tables: dict[str, list[Row]],
    column: Callable[[Sequence[Row]], str],
    title: str,
    axis: str,
    *,
    factor: float = 1.0,
    instances: str | None = None,
) -> go.Figure | None:
    """Mean and band of one measure, a line per boat, or per boat and instance."""
    figure = go.Figure()
    for boat in _drawn(data, tables):
        numbers = {row["instance"] for row in tables[boat]} if instances else {None}
        for place, number in enumerate(sorted(numbers, key=lambda one: -1 if one is None else one)):
            rows = [row for row in tables[boat] if not instances or row["instance"] == number]
            name = label(boat)
            if instances and len(numbers) > 1:
                name = f"{name}, {instances} {number}"
            _add_band(figure, rows, column(rows), name, colour_of(data, boat), factor, dashed=place > 0)
    if not figure.data:
        return None
    figure.update_xaxes(title="time (UTC)")
    figure.update_yaxes(title=axis)
    return _finished(figure, title)


def _add_band(
    figure: go.Figure, rows: Sequence[Row], column: str, name: str, colour: str, factor: float, *, dashed: bool
) -> None:
    known = [row for row in rows if row[f"{column}_mean"] is not None]
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    for place, run in enumerate(runs(known)):
        hours = [row["hour"] for row in run]
        lows, means, highs = ([row[f"{column}_{what}"] * factor for row in run] for what in ("min", "mean", "max"))
        figure.add_scatter(
            x=hours + hours[::-1],
            y=highs + lows[::-1],
            fill="toself",
            fillcolor=f"rgba({red},{green},{blue},0.15)",
            mode="lines",
            line={"width": 0},
            hoverinfo="skip",
            showlegend=False,
            legendgroup=name,
            name=f"{name}, band",
        )
        figure.add_scatter(
            x=hours,
            y=means,
            customdata=list(zip(lows, highs, strict=True)),
            mode="lines+markers",
            marker={"size": 5},
            line={"color": colour, "dash": "dash" if dashed else "solid"},
            showlegend=place == 0,
            name=name,
            legendgroup=name,
            hovertemplate="%{x|%Y-%m-%d %H:00} UTC<br>mean %{y:.1f}, %{customdata[0]:.1f} to %{customdata[1]:.1f}",
        )


def runs(rows: Sequence[Row]) -> list[list[Row]]:
    """Hours that follow each other: over an hour without data no line is drawn."""
    found: list[list[Row]] = []
    for row in rows:
        if found and row["hour"] - found[-1][-1]["hour"] <= timedelta(hours=1):
            found[-1].append(row)
        else:
            found.append([row])
    return found


def _drawn(data: ReportData, tables: dict[str, list[Row]]) -> list[str]:
    """The boats that have rows, as many as one plot may show."""
    return [boat for boat in data.boats if tables.get(boat)][:BOATS_DRAWN_MAX]


def _strip_text(row: Row) -> str:
    share = "" if row["coverage"] is None else f", {100 * row['coverage']:.2f} % of what was sent"
    missing = f"{row['holes']:,} missing, {row['lost']:,} lost"
    return f"{row['held']:,} held{share}<br>{missing}<br>{row['backfill']:,} by backfill"


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _finished(figure: go.Figure, title: str, *, height: int = 380) -> go.Figure:
    figure.update_layout(
        title={"text": title, "font": {"size": 15}},
        height=height,
        margin={"l": 70, "r": 20, "t": 50, "b": 50},
        template="plotly_white",
        hovermode="closest",
        legend={"orientation": "v"},
    )
    return figure
