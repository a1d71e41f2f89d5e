"""A simulated voyage as real NMEA 2000 frames: for demos, tests and benchmarks without a boat.

The boat's track, speed, wind, depth, engines and batteries are functions of time, drawn once from a seed, so any
stretch of the voyage can be computed at any time and is always the same. Fast-packet messages appear whole, as after
reassembly. Every device claims its address and sends its product information at the start and every minute.
`Voyage.frames` makes whole columns at once; nothing here loops over frames in Python.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tidelog.blocks.columns import FrameColumns
from tidelog.nmea.devices import Name, Product, introductions
from tidelog.units import US_PER_MS, US_PER_S

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[Any]

_METRES_PER_DEGREE: Final = 111_320.0
_DAY_US: Final = 86_400 * US_PER_S
_TURN: Final = 2 * np.pi
_KELVIN: Final = 273.15
_INTRODUCTION_US: Final = 60 * US_PER_S


def can_id(pgn: int, source: int, priority: int) -> int:
    """The 29-bit id of a broadcast message."""
    return priority << 26 | pgn << 8 | source


@dataclass(frozen=True, slots=True)
class _Wave:
    """A quantity with a mean and a few sine waves. Its integral is known exactly, so a track needs no steps."""

    mean: float
    parts: tuple[tuple[float, float, float], ...]
    """(amplitude, period in seconds, phase)"""
    grain: float = 0.0
    """Sensor noise, at most this much either way."""

    def at(self, seconds: Floats) -> Floats:
        value = self.mean + self.grain * _noise(seconds)
        for amplitude, period, phase in self.parts:
            value += amplitude * np.sin(_TURN * seconds / period + phase)
        return value

    def integral(self, seconds: Floats) -> Floats:
        value = self.mean * seconds
        for amplitude, period, phase in self.parts:
            rate = _TURN / period
            value += amplitude / rate * (np.cos(phase) - np.cos(rate * seconds + phase))
        return value


def _wave(rng: random.Random, mean: float, *swings: tuple[float, float], grain: float = 0.0) -> _Wave:
    """Swings are (amplitude, period); each gets a phase and a little variation from the seed."""
    parts = tuple((a, p * rng.uniform(0.9, 1.1), rng.uniform(0, _TURN)) for a, p in swings)
    return _Wave(mean, parts, grain)


def _noise(seconds: Floats) -> Floats:
    """Values in [-1, 1) that look random and depend on the moment only (the finisher of splitmix64)."""
    bits = (seconds * US_PER_S).astype(np.int64).view(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    noise: Floats = (bits >> np.uint64(11)).astype(np.float64) / 2**52 - 1.0
    return noise


@dataclass(frozen=True, slots=True)
class _Message:
    """One kind of message: its sender, its rate, and the layout of its payloads."""

    pgn: int
    source: int
    priority: int
    per_second: float
    layout: npt.DTypeLike
    fill: Callable[[Rows, Floats, npt.NDArray[np.int64]], None]


class Voyage:
    """A voyage that begins at `start_us`; everything else follows from the seed."""

    def __init__(self, *, seed: int, start_us: int) -> None:
        rng = random.Random(seed)
        self.start_us = start_us
        self._latitude = rng.uniform(-50.0, 58.0)
        self._longitude = rng.uniform(-170.0, 170.0)
        self._north = _wave(rng, rng.uniform(-2.5, 2.5), (1.2, 3600), (0.3, 240), grain=0.02)
        self._east = _wave(rng, rng.uniform(1.0, 3.5), (1.0, 2700), (0.3, 300), grain=0.02)
        self._wind = _wave(rng, rng.uniform(5, 9), (2.5, 1800), (0.8, 37), (0.4, 9), grain=0.15)
        self._wind_angle = _wave(rng, rng.uniform(0.4, 2.4), (0.5, 900), (0.08, 21), grain=0.02)
        self._depth = _wave(rng, rng.uniform(18, 60), (9, 1500), (2, 130), grain=0.05)
        self._revolutions = _wave(rng, 1850, (140, 700), (12, 5), grain=6)
        self._engine_kelvin = _wave(rng, _KELVIN + 82, (3, 1100), grain=0.05)
        self._volts = _wave(rng, 13.1, (0.35, 2000), (0.03, 11), grain=0.02)
        self._amperes = _wave(rng, -8, (6, 1700), (1, 13), grain=0.3)
        self._water_kelvin = _wave(rng, _KELVIN + rng.uniform(6, 24), (0.6, 5000), grain=0.02)
        self._pascals = _wave(rng, 101_300, (350, 20_000), grain=4)
        self._neighbour = rng.randrange(200_000_000, 775_999_999)
        self._messages = self._plan()
        self._introductions = introductions([_device(rng, source, *label) for source, label in _DEVICES.items()])

    def frames(self, start_us: int, end_us: int, *, frames_per_s: float | None = None) -> FrameColumns:
        """The frames with times in [start_us, end_us), in order of time.

        `frames_per_s` speeds the instruments up or slows them down; by default they send as real ones do. The devices
        send their claims once a minute whatever the rate.
        """
        natural = sum(message.per_second for message in self._messages)
        factor = 1.0 if frames_per_s is None else frames_per_s / natural
        parts = [self._stretch(message, start_us, end_us, factor) for message in self._messages]
        for place, (identifier, payload) in enumerate(self._introductions):
            first_us = self._introduced_first_us(start_us, place)
            # Nearly always none is due, and this is called many times a second.
            if first_us < end_us:
                parts.append(_repeated(first_us, end_us, identifier, payload))
        together = FrameColumns.concatenate([part for part in parts if len(part)])
        return _in_order(together)

    def position(self, time_us: int) -> tuple[float, float]:
        """Latitude and longitude at a moment, in degrees."""
        latitude, longitude = self._track(np.array([(time_us - self.start_us) / US_PER_S]))
        return float(latitude[0]), float(longitude[0])

    def _stretch(self, message: _Message, start_us: int, end_us: int, factor: float) -> FrameColumns:
        period_us = US_PER_S / (message.per_second * factor)
        # A phase of its own for each message, or all would come in the same microsecond.
        phase_us = message.pgn * 7919 % max(1, int(period_us))
        first = int((start_us - self.start_us - phase_us) / period_us) - 1
        last = int((end_us - self.start_us - phase_us) / period_us) + 2
        ticks = np.arange(max(first, 0), max(last, 0), dtype=np.int64)
        # Senders do not keep time to the microsecond; a tenth of a period of jitter keeps their order.
        jitter_us = (_noise(ticks.astype(np.float64) + message.pgn / 7) + 1) * min(period_us / 20, 400)
        times_us = (ticks * period_us + jitter_us).astype(np.int64) + phase_us + self.start_us
        inside = (times_us >= start_us) & (times_us < end_us)
        ticks, times_us = ticks[inside], times_us[inside]
        layout = np.dtype(message.layout)
        rows = np.zeros(len(ticks), dtype=layout)
        if "sid" in (layout.names or ()):
            rows["sid"] = ticks % 253
        message.fill(rows, (times_us - self.start_us) / US_PER_S, times_us)
        return FrameColumns(
            times_us=times_us,
            can_ids=np.full(len(ticks), can_id(message.pgn, message.source, message.priority), dtype=np.uint32),
            payload_offsets=np.arange(len(ticks) + 1, dtype=np.int32) * np.int32(layout.itemsize),
            payload=rows.view(np.uint8).reshape(-1),
        )

    def _introduced_first_us(self, start_us: int, place: int) -> int:
        """When this claim or label comes first from `start_us` on; each a millisecond behind the one before."""
        began_us = self.start_us + place * US_PER_MS
        return began_us + max(0, -((began_us - start_us) // _INTRODUCTION_US)) * _INTRODUCTION_US

    def _track(self, seconds: Floats) -> tuple[Floats, Floats]:
        latitude = self._latitude + self._north.integral(seconds) / _METRES_PER_DEGREE
        narrowing = np.cos(np.radians(self._latitude))
        return latitude, self._longitude + self._east.integral(seconds) / (_METRES_PER_DEGREE * narrowing)

    def _course(self, seconds: Floats) -> tuple[Floats, Floats]:
        """Speed in metres a second and course in radians over ground."""
        north, east = self._north.at(seconds), self._east.at(seconds)
        return np.hypot(north, east), np.arctan2(east, north) % _TURN

    # --- one method per message ------------------------------------------------------------------

    def _plan(self) -> tuple[_Message, ...]:
        eight = [("sid", "u1")]
        engine = [("instance", "u1"), ("rpm", "<u2"), ("boost", "<u2"), ("tilt", "i1"), ("rest", "<u2")]
        return (
            _Message(
                127250, 7, 2, 10, [*eight, ("heading", "<u2"), ("rest", "<i2", 2), ("reference", "u1")], self._heading
            ),
            _Message(129025, 3, 2, 10, [("latitude", "<i4"), ("longitude", "<i4")], self._position),
            _Message(
                129026,
                3,
                2,
                4,
                [*eight, ("reference", "u1"), ("cog", "<u2"), ("sog", "<u2"), ("rest", "<u2")],
                self._cog,
            ),
            _Message(
                130306, 9, 2, 10, [*eight, ("speed", "<u2"), ("angle", "<u2"), ("rest", "u1", 3)], self._fill_wind
            ),
            _Message(
                128267, 35, 3, 1, [*eight, ("depth", "<u4"), ("offset", "<i2"), ("range", "u1")], self._fill_depth
            ),
            _Message(127488, 40, 2, 10, engine, self._engine_rapid),
            _Message(127489, 40, 2, 1, _ENGINE, self._engine),
            _Message(
                127508,
                60,
                6,
                0.7,
                [("instance", "u1"), ("volts", "<i2"), ("amps", "<i2"), ("temp", "<u2"), ("sid", "u1")],
                self._battery,
            ),
            _Message(
                130312,
                35,
                5,
                0.5,
                [*eight, ("instance", "u1"), ("kind", "u1"), ("temp", "<u2"), ("set", "<u2"), ("rest", "u1")],
                self._water,
            ),
            _Message(
                130314,
                35,
                5,
                0.5,
                [*eight, ("instance", "u1"), ("kind", "u1"), ("pressure", "<i4"), ("rest", "u1")],
                self._barometer,
            ),
            _Message(126992, 3, 3, 1, [*eight, ("kind", "u1"), ("day", "<u2"), ("clock", "<u4")], self._clock),
            _Message(129029, 3, 3, 1, _GNSS, self._gnss),
            _Message(129038, 43, 4, 0.3, _AIS, self._ais),
        )

    def _heading(self, rows: Rows, seconds: Floats, _: npt.NDArray[np.int64]) -> None:
        rows["heading"] = self._course(seconds)[1] * 1e4
        rows["rest"] = 0x7FFF
        rows["reference"] = 0xFC

    def _position(self, rows: Rows, seconds: Floats, _: npt.NDArray[np.int64]) -> None:
        latitude, longitude = self._track(seconds)
        rows["latitude"], rows["longitude"] = latitude * 1e7, longitude * 1e7

    def _cog(self, rows: Rows, seconds: Floats, _: npt.NDArray[np.int64]) -> None:
        speed, course = self._course(seconds)
        rows["reference"], rows["rest"] = 0xFC, 0xFFFF
        rows["cog"], rows["sog"] = course * 1e4, speed * 100

    def _fill_wind(self, rows: Rows, seconds: Floats, _: npt.NDArray[np.int64]) -> None:
        rows["speed"] = np.maximum(self._wind.at(seconds), 0) * 100
        rows["angle"] = self._wind_angle.at(seconds) % _TURN * 1e4
        rows["rest"] = (0xFA, 0xFF, 0xFF)  # apparent wind, then reserved

    def _fill_depth(self, rows: Rows, seconds: Floats, _: npt.NDArray[np.int64]) -> None:
        rows["depth"] = np.maximum(self._depth.at(seconds), 1) * 100
        rows["range"] = 0xFF

    def _engine_rapid(self, rows: Rows, seconds: Floats, _: npt.NDArray[np.int64]) -> None:
        rows["rpm"] = self._revolutions.at(seconds) * 4
        rows["boost"], rows["tilt"], rows["rest"] = 0xFFFF, 0x7F, 0xFFFF

    def _engine(self, rows: Rows, seconds: Floats, _: npt.NDArray[np.int64]) -> None:
        for name in ("oil_kelvin", "coolant", "fuel"):
            rows[name] = 0xFFFF
        rows["oil"] = 3500 + self._revolutions.at(seconds) / 10
        rows["kelvin"] = self._engine_kelvin.at(seconds) * 100
        rows["volts"] = self._volts.at(seconds) * 100
        rows["rate"] = self._revolutions.at(seconds) / 18
        rows["hours"] = 3_600_000 + seconds
        rows["rest"], rows["load"], rows["torque"] = 0xFF, 0x7F, 0x7F

    def _battery(self, rows: Rows, seconds: Floats, _: npt.NDArray[np.int64]) -> None:
        rows["volts"], rows["amps"] = self._volts.at(seconds) * 100, self._amperes.at(seconds) * 10
        rows["temp"] = 0xFFFF

    def _water(self, rows: Rows, seconds: Floats, _: npt.NDArray[np.int64]) -> None:
        rows["temp"] = self._water_kelvin.at(seconds) * 100
        rows["set"], rows["rest"] = 0xFFFF, 0xFF

    def _barometer(self, rows: Rows, seconds: Floats, _: npt.NDArray[np.int64]) -> None:
        rows["pressure"], rows["rest"] = self._pascals.at(seconds) * 10, 0xFF

    def _clock(self, rows: Rows, _: Floats, times_us: npt.NDArray[np.int64]) -> None:
        rows["kind"] = 0xF0
        rows["day"], rows["clock"] = times_us // _DAY_US, times_us % _DAY_US // 100

    def _gnss(self, rows: Rows, seconds: Floats, times_us: npt.NDArray[np.int64]) -> None:
        latitude, longitude = self._track(seconds)
        rows["day"], rows["clock"] = times_us // _DAY_US, times_us % _DAY_US // 100
        rows["latitude"], rows["longitude"] = latitude * 1e16, longitude * 1e16
        rows["method"], rows["integrity"], rows["satellites"], rows["stations"] = 0x13, 0xFC, 11, 0xFF
        rows["hdop"], rows["pdop"], rows["geoid"] = 80, 120, 1850

    def _ais(self, rows: Rows, seconds: Floats, _: npt.NDArray[np.int64]) -> None:
        latitude, longitude = self._track(seconds)
        rows["message"], rows["mmsi"] = 1, self._neighbour
        rows["longitude"], rows["latitude"] = (longitude + 0.02) * 1e7, (latitude - 0.01) * 1e7
        rows["cog"], rows["sog"], rows["heading"] = 21_000, 620, 21_000
        rows["turn"], rows["status"], rows["spare"] = 0, 0xC0, 0xFF


_ENGINE: Final = [
    ("instance", "u1"), ("oil", "<u2"), ("oil_kelvin", "<u2"), ("kelvin", "<u2"), ("volts", "<i2"), ("rate", "<i2"),
    ("hours", "<u4"), ("coolant", "<u2"), ("fuel", "<u2"), ("rest", "u1"), ("status", "<u2", 2), ("load", "i1"),
    ("torque", "i1"),
]  # fmt: skip
_GNSS: Final = [
    ("sid", "u1"), ("day", "<u2"), ("clock", "<u4"), ("latitude", "<i8"), ("longitude", "<i8"), ("altitude", "<i8"),
    ("method", "u1"), ("integrity", "u1"), ("satellites", "u1"), ("hdop", "<i2"), ("pdop", "<i2"), ("geoid", "<i4"),
    ("stations", "u1"),
]  # fmt: skip
_AIS: Final = [
    ("message", "u1"), ("mmsi", "<u4"), ("longitude", "<i4"), ("latitude", "<i4"), ("fix", "u1"), ("cog", "<u2"),
    ("sog", "<u2"), ("radio", "u1", 3), ("heading", "<u2"), ("turn", "<i2"), ("status", "u1"), ("spare", "u1"),
    ("sid", "u1"),
]  # fmt: skip


_DEVICES: Final = {
    3: (229, 145, 60, "GPS 24xd"),
    7: (137, 140, 60, "SSC300 compass"),
    9: (135, 130, 85, "220WX weather station"),
    35: (135, 130, 60, "DST810 depth, temperature"),
    40: (174, 160, 50, "EVC engine gateway"),
    43: (504, 195, 70, "Cortex AIS"),
    60: (358, 170, 35, "SmartShunt"),
}
"""Manufacturer code, device function, device class and model by source address: the senders that `_plan` lists."""


def _device(
    rng: random.Random, source: int, manufacturer: int, function: int, device_class: int, model: str
) -> tuple[int, Name, Product]:
    unique_number = rng.randrange(1, 1 << 21)
    name = Name(
        unique_number=unique_number,
        manufacturer_code=manufacturer,
        device_instance=0,
        device_function=function,
        device_class=device_class,
        industry_group=4,
    )
    version = f"{rng.randrange(1, 5)}.{rng.randrange(100):02}"
    product = Product(
        product_code=rng.randrange(1000, 30_000),
        model_id=model,
        software_version=version,
        model_version="1",
        model_serial=str(unique_number),
    )
    return source, name, product


def _repeated(first_us: int, end_us: int, identifier: int, payload: bytes) -> FrameColumns:
    times_us = np.arange(first_us, end_us, _INTRODUCTION_US, dtype=np.int64)
    return FrameColumns(
        times_us=times_us,
        can_ids=np.full(len(times_us), identifier, dtype=np.uint32),
        payload_offsets=np.arange(len(times_us) + 1, dtype=np.int32) * np.int32(len(payload)),
        payload=np.tile(np.frombuffer(payload, dtype=np.uint8), len(times_us)),
    )


def _in_order(frames: FrameColumns) -> FrameColumns:
    """Sort by time, payloads included, without a step per frame."""
    order = np.argsort(frames.times_us, kind="stable")
    starts = frames.payload_offsets[:-1][order]
    lengths = np.diff(frames.payload_offsets)[order]
    offsets = np.zeros(len(order) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    # Byte k of the result comes from: start of its frame in the source + its place in the frame.
    source = np.repeat(starts - offsets[:-1], lengths) + np.arange(int(offsets[-1]), dtype=np.int32)
    return FrameColumns(
        times_us=frames.times_us[order],
        can_ids=frames.can_ids[order],
        payload_offsets=offsets,
        payload=frames.payload[source],
    )
