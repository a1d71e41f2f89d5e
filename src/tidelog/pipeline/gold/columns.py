"""The signals of each gold column: the only module of gold that uses signal names.

A measure is one quantity of an hourly table. It has the signal of the quantity, the unit in gold, the plausible values
(failing sensors send nonsense, not silence) and, where one message serves several quantities, the required value of its
qualifying field: wind speed counts as apparent wind only in a message with that reference. Several measures may name
the same column: a temperature of the sea arrives in four different messages. Where they are heard equally long, the
earlier one counts (`primaries`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Measure:
    """One quantity of one signal, and the column it feeds."""

    column: str
    """Name of the gold column without `_min`, `_mean`, `_max`; the unit comes last."""
    unit: str
    signal: str
    low: float
    """The smallest plausible value, in the unit of gold."""
    high: float
    qualifier: str | None = None
    """A text signal of the same message that decides whether the value counts."""
    texts: tuple[str, ...] = ()
    """The required value of the qualifier."""
    added: str | None = None
    """A signal of the same message, in the same unit, that is added where it is there."""
    is_angle: bool = False
    """A direction: its mean is that of directions, and it has no minimum or maximum."""


DEGREES_PER_RADIAN: Final = 180 / math.pi
CONVERSIONS: Final = MappingProxyType(
    {
        ("K", "C"): (1.0, -273.15),
        ("C", "C"): (1.0, 0.0),
        ("deg C", "C"): (1.0, 0.0),
        ("Pa", "kPa"): (0.001, 0.0),
        ("kPa", "kPa"): (1.0, 0.0),
        ("Pa", "hPa"): (0.01, 0.0),
        ("hPa", "hPa"): (1.0, 0.0),
        ("Hz", "rpm"): (60.0, 0.0),
        ("rpm", "rpm"): (1.0, 0.0),
        ("m3/s", "L/h"): (3_600_000.0, 0.0),
        ("L/h", "L/h"): (1.0, 0.0),
        ("ratio", "%"): (100.0, 0.0),
        ("%", "%"): (1.0, 0.0),
        ("m/s", "m/s"): (1.0, 0.0),
        ("m", "m"): (1.0, 0.0),
        ("V", "V"): (1.0, 0.0),
        ("A", "A"): (1.0, 0.0),
        ("s", "h"): (1 / 3_600, 0.0),
        ("rad", "deg"): (DEGREES_PER_RADIAN, 0.0),
        ("deg", "deg"): (1.0, 0.0),
        ("m3", "L"): (1_000.0, 0.0),
        ("L", "L"): (1.0, 0.0),
    }
)
"""(unit of the signal, unit of gold) -> factor and offset. Other units give no value."""

# --- the track ---------------------------------------------------------------------------------------

POSITIONS: Final = (
    ("position_rapid_update.latitude", "position_rapid_update.longitude"),
    ("gnss_position_data.latitude", "gnss_position_data.longitude"),
)
"""Degrees. Earlier pairs win among sources that cover a day equally well."""

SPEED: Final = "cog_sog_rapid_update.sog"  # m/s
COURSE: Final = "cog_sog_rapid_update.cog"  # rad
COURSE_REFERENCE: Final = "cog_sog_rapid_update.cog_reference"
COURSE_REFERENCE_TEXTS: Final = ("True",)
"""A magnetic course is left out: the track's own course is better than one that is off by the variation."""

# --- engines, per engine instance --------------------------------------------------------------------

ENGINE_SPEED: Final = Measure("rpm", "rpm", "engine_parameters_rapid_update.speed", 0.0, 16_000.0)

_DYNAMIC: Final = "engine_parameters_dynamic"
ENGINE: Final = (
    ENGINE_SPEED,
    Measure("coolant_temperature_c", "C", f"{_DYNAMIC}.temperature", -40.0, 400.0),
    Measure("oil_temperature_c", "C", f"{_DYNAMIC}.oil_temperature", -40.0, 400.0),
    Measure("oil_pressure_kpa", "kPa", f"{_DYNAMIC}.oil_pressure", 0.0, 3_000.0),
    Measure("fuel_rate_l_per_h", "L/h", f"{_DYNAMIC}.fuel_rate", 0.0, 3_000.0),
    Measure("alternator_v", "V", f"{_DYNAMIC}.alternator_potential", 0.0, 100.0),
    Measure("load_percent", "%", f"{_DYNAMIC}.engine_load", 0.0, 125.0),
)

ENGINE_METER: Final = Measure("meter_h", "h", f"{_DYNAMIC}.total_engine_hours", 0.0, 500_000.0)

# --- batteries, per battery instance -----------------------------------------------------------------

ELECTRICAL: Final = (
    Measure("voltage_v", "V", "battery_status.voltage", 0.0, 1_000.0),
    Measure("current_a", "A", "battery_status.current", -3_000.0, 3_000.0),
    Measure("temperature_c", "C", "battery_status.temperature", -40.0, 150.0),
    Measure("charge_percent", "%", "dc_detailed_status.state_of_charge", 0.0, 100.0),
    Measure("health_percent", "%", "dc_detailed_status.state_of_health", 0.0, 100.0),
)

# --- wind, water and air, per boat -------------------------------------------------------------------

_TRUE_WIND: Final = (
    "True (ground referenced to North)",
    "Magnetic (ground referenced to Magnetic North)",
    "True (boat referenced)",
    "True (water referenced)",
)
_WIND: Final = "wind_data.wind_speed"
_SEA: Final = ("Sea Temperature",)
_OUTSIDE: Final = ("Outside Temperature",)
_INSIDE: Final = ("Inside Temperature", "Main Cabin Temperature")
_OBSOLETE: Final = "environmental_parameters_obsolete"
_PARAMETERS: Final = "environmental_parameters"


def _temperatures(column: str, low: float, high: float, texts: tuple[str, ...]) -> Iterable[Measure]:
    """The three messages that can hold any temperature and name its kind in a field."""
    for text in texts:
        for signal, qualifier in (
            ("temperature.actual_temperature", "temperature.source"),
            ("temperature_extended_range.temperature", "temperature_extended_range.source"),
            (f"{_PARAMETERS}.temperature", f"{_PARAMETERS}.temperature_source"),
        ):
            yield Measure(column, "C", signal, low, high, qualifier, (text,))


ENVIRONMENT: Final = (
    # One measure each: wind over ground and wind over water are two things, and their mean is none.
    *(Measure("true_wind_mps", "m/s", _WIND, 0.0, 100.0, "wind_data.reference", (text,)) for text in _TRUE_WIND),
    Measure("apparent_wind_mps", "m/s", _WIND, 0.0, 100.0, "wind_data.reference", ("Apparent",)),
    # The offset of the transducer: to the surface if it is positive, to the keel if it is negative.
    Measure("depth_m", "m", "water_depth.depth", 0.0, 12_000.0, added="water_depth.offset"),
    *_temperatures("water_temperature_c", -5.0, 60.0, _SEA),
    Measure("water_temperature_c", "C", f"{_OBSOLETE}.water_temperature", -5.0, 60.0),
    *_temperatures("air_temperature_c", -70.0, 70.0, _OUTSIDE),
    Measure("air_temperature_c", "C", f"{_OBSOLETE}.outside_ambient_air_temperature", -70.0, 70.0),
    *_temperatures("cabin_temperature_c", -70.0, 90.0, _INSIDE),
    Measure("pressure_hpa", "hPa", "actual_pressure.pressure", 800, 1_100, "actual_pressure.source", ("Atmospheric",)),
    Measure("pressure_hpa", "hPa", f"{_PARAMETERS}.atmospheric_pressure", 800.0, 1_100.0),
    Measure("pressure_hpa", "hPa", f"{_OBSOLETE}.atmospheric_pressure", 800.0, 1_100.0),
    Measure("humidity_percent", "%", "humidity.actual_humidity", 0.0, 100.0, "humidity.source", ("Outside",)),
    Measure(
        "humidity_percent", "%", f"{_PARAMETERS}.humidity", 0.0, 100.0, f"{_PARAMETERS}.humidity_source", ("Outside",)
    ),
)

# --- sailing: minute by minute, per boat ---------------------------------------------------------------

_REFERENCE: Final = "wind_data.reference"
_NORTH, _BOAT, _WATER = "True (ground referenced to North)", "True (boat referenced)", "True (water referenced)"


def _angle(column: str, signal: str, qualifier: str, text: str) -> Measure:
    # Some send angles to port as negative ones.
    return Measure(column, "deg", signal, -360.0, 360.0, qualifier, (text,), is_angle=True)


NAVIGATION: Final = (
    _angle("heading_true_deg", "vessel_heading.heading", "vessel_heading.reference", "True"),
    _angle("heading_magnetic_deg", "vessel_heading.heading", "vessel_heading.reference", "Magnetic"),
    Measure("water_speed_mps", "m/s", "speed.speed_water_referenced", 0.0, 40.0),
    Measure("apparent_wind_mps", "m/s", _WIND, 0.0, 100.0, _REFERENCE, ("Apparent",)),
    _angle("apparent_wind_angle_deg", "wind_data.wind_angle", _REFERENCE, "Apparent"),
    *(Measure("true_wind_mps", "m/s", _WIND, 0.0, 100.0, _REFERENCE, (text,)) for text in (_WATER, _BOAT)),
    *(_angle("true_wind_angle_deg", "wind_data.wind_angle", _REFERENCE, text) for text in (_WATER, _BOAT)),
    Measure("ground_wind_mps", "m/s", _WIND, 0.0, 100.0, _REFERENCE, (_NORTH,)),
    _angle("ground_wind_from_deg", "wind_data.wind_angle", _REFERENCE, _NORTH),
)

# --- tanks, per fluid and tank instance ----------------------------------------------------------------

FLUIDS: Final = ("Fuel", "Water", "Gray water", "Live well", "Oil", "Black water")
TANKS: Final = tuple(
    Measure(column, unit, f"fluid_level.{signal}", 0.0, high, "fluid_level.type", (fluid,))
    for fluid in FLUIDS
    for column, unit, signal, high in (("level_percent", "%", "level", 110.0), ("capacity_l", "L", "capacity", 1e6))
)

# --- other vessels -------------------------------------------------------------------------------------

AIS_PGNS: Final = MappingProxyType(
    {
        129038: "class A",
        129039: "class B",
        129040: "class B",
        129041: "aid to navigation",
        129793: "base station",
        129794: "class A",
        129798: "aircraft",
        129809: "class B",
        129810: "class B",
    }
)
"""What sends each message."""
AIS_NUMBERS: Final = MappingProxyType(
    {
        "user_id": "mmsi",
        "latitude": "latitude",
        "longitude": "longitude",
        "sog": "speed_mps",
        "cog": "course_rad",
        "length": "length_m",
        "length_diameter": "length_m",
        "beam": "beam_m",
        "beam_diameter": "beam_m",
        "draft": "draft_m",
    }
)
"""Fields and what they are in the table."""
AIS_TEXTS: Final = MappingProxyType(
    {
        "name": "name",
        "aton_name": "name",
        "callsign": "callsign",
        "type_of_ship": "ship_type",
        "aton_type": "ship_type",
        "destination": "destination",
        "nav_status": "nav_status",
        "ais_transceiver_information": "heard_on",
    }
)

SENSORS: Final = (*ENVIRONMENT, Measure("depth_below_transducer_m", "m", "water_depth.depth", 0.0, 12_000.0))
"""What the table `sensors` has of every sender."""


def column_names(measures: Iterable[Measure]) -> list[str]:
    """The columns of the measures, each once, in order."""
    return list(dict.fromkeys(measure.column for measure in measures))


def signal_names(measures: Iterable[Measure]) -> list[str]:
    """Every signal that the measures read, qualifiers included, each once."""
    read = (name for measure in measures for name in (measure.signal, measure.qualifier, measure.added))
    return list(dict.fromkeys(name for name in read if name is not None))
