"""The hourly tables: engines, batteries, wind, water and air."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.pipeline.gold_rows import NOON, Signals, tiny_data
from tidelog.pipeline.gold.ais_targets import build_ais_targets
from tidelog.pipeline.gold.columns import CONVERSIONS, ELECTRICAL, ENGINE, ENVIRONMENT, signal_names
from tidelog.pipeline.gold.electrical import build_electrical
from tidelog.pipeline.gold.engine import build_engine, build_engine_meters
from tidelog.pipeline.gold.environment import build_environment, build_navigation, build_sensors
from tidelog.pipeline.gold.schemas import (
    AIS_TARGETS,
    ELECTRICAL_HOURS,
    ENGINE_HOURS,
    ENGINE_METERS,
    ENVIRONMENT_HOURS,
    NAVIGATION_MINUTES,
    SENSOR_HOURS,
    TANK_HOURS,
)
from tidelog.pipeline.gold.tanks import build_tanks

pytestmark = pytest.mark.slow  # many jobs of Spark; `test_pipeline_commands` runs all stages in the fast lane

WIND, TEMPERATURE, DEPTH, DYNAMIC, BATTERY, CHARGE, PRESSURE = 130306, 130312, 128267, 127489, 127508, 127506, 130314


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def engines() -> Signals:
    """Port runs for ten minutes, at 1,000 then at 2,000; starboard stands, and speaks in revolutions per second."""
    boat = Signals("engines")
    for second in range(900):
        boat.engine(at(second), 0, 0.0 if second >= 600 else 1000.0 if second < 300 else 2000.0)
    for second in range(0, 900, 10):
        boat.message(at(second), 127488, ("engine_parameters_rapid_update.speed", 0.5, "Hz"), instance=1)
        boat.message(
            at(second),
            DYNAMIC,
            ("engine_parameters_dynamic.temperature", 353.15, "K"),
            ("engine_parameters_dynamic.oil_pressure", 400_000.0, "Pa"),
            ("engine_parameters_dynamic.fuel_rate", 12.5, "L/h"),
            instance=0,
        )
    # A sensor gone mad, and the engine running over the end of the hour, read every six seconds.
    boat.message(at(100), DYNAMIC, ("engine_parameters_dynamic.temperature", 9_999.0, "K"), instance=0)
    for second in range(3570, 3630, 6):
        boat.engine(at(second), 0, 1500.0)
    boat.engine(at(3700), 0, 0.0)
    # Its own meter, and a display that repeats an old reading for a while.
    for second, hours_run in ((0, 1_160.5), (1800, 1_161.0), (3600, 1_161.5)):
        boat.message(
            at(second), DYNAMIC, ("engine_parameters_dynamic.total_engine_hours", hours_run * 3600, "s"), instance=0
        )
    boat.message(at(10), DYNAMIC, ("engine_parameters_dynamic.total_engine_hours", 3_600.0, "s"), instance=0, source=9)
    # Alone in its day: nobody knows for how long.
    boat.engine(at(86_400), 0, 1500.0)
    # Warm, and nobody says whether it turns.
    boat.message(at(90_000), DYNAMIC, ("engine_parameters_dynamic.temperature", 353.15, "K"), instance=0)
    return boat


def three_sounders() -> Signals:
    """Three sounders in three places: 10 m below one with its offset to the surface, 200 m of an echo, and one that
    is heard alone in the second hour. The first is unnamed until its claim comes."""
    boat = Signals("sounders")
    for second in range(0, 1800, 2):
        boat.message(
            at(second),
            DEPTH,
            ("water_depth.depth", 10.0, "m"),
            ("water_depth.offset", 0.5, "m"),
            source=35,
            device="000000000000000a" if second > 600 else None,
        )
    for second in range(0, 1200):  # faster, and heard in fewer minutes
        boat.message(at(second), DEPTH, ("water_depth.depth", 200.0, "m"), source=36, device="000000000000000b")
    for second in range(1200, 4200, 10):
        boat.message(
            at(second),
            DEPTH,
            ("water_depth.depth", 12.0, "m"),
            ("water_depth.offset", -1.5, "m"),
            source=37 if second < 3900 else 38,  # it takes another address
            device="000000000000000c",
        )
    return boat


def batteries() -> Signals:
    boat = Signals("batteries")
    for instance, volts in ((0, 12.5), (1, 25.0)):
        for second in range(10):
            boat.message(
                at(second),
                BATTERY,
                ("battery_status.voltage", volts + second / 10, "V"),
                ("battery_status.current", -4.0, "A"),
                instance=instance,
            )
    boat.message(at(20), CHARGE, ("dc_detailed_status.state_of_charge", 0.8, "ratio"), instance=1)
    return boat


def two_monitors() -> Signals:
    """Two devices that call their batteries 0: only one of them counts, all day."""
    boat = Signals("two-monitors")
    for second in range(0, 600, 5):
        boat.message(at(second), BATTERY, ("battery_status.voltage", 12.0, "V"), instance=0, source=1)
    for second in range(0, 300):
        boat.message(at(second), BATTERY, ("battery_status.voltage", 24.0, "V"), instance=0, source=2)
    return boat


def weather() -> Signals:
    """Wind that says whether it is apparent; temperatures of the sea, the air and a fridge in the same message."""
    boat = Signals("weather")
    for second, (speed, reference) in enumerate(
        [(5.0, "Apparent"), (7.0, "Apparent"), (9.0, "True (water referenced)"), (900.0, "Apparent")]
    ):
        boat.message(at(second), WIND, ("wind_data.wind_speed", speed, "m/s"), ("wind_data.reference", reference, None))
    boat.message(at(5), WIND, ("wind_data.wind_speed", 50.0, "m/s"))  # of what, it does not say
    for kelvin, source in (
        (288.15, "Sea Temperature"),
        (293.15, "Outside Temperature"),
        (277.15, "Refrigeration Temperature"),
    ):
        boat.message(
            at(10),
            TEMPERATURE,
            ("temperature.source", source, None),
            ("temperature.actual_temperature", kelvin, "K"),
            instance=0,
        )
    boat.message(
        at(11), PRESSURE, ("actual_pressure.source", "Atmospheric", None), ("actual_pressure.pressure", 101_300.0, "Pa")
    )
    for second in range(3590, 3610):
        boat.message(at(second), DEPTH, ("water_depth.depth", second - 3580.0, "m"))
    boat.message(at(3611), DEPTH, ("water_depth.depth", 1.0, "fathom"))
    return boat


def sailing() -> Signals:
    """On the wind with the heading about north; a second compass, and a log, in the first minute only."""
    boat = Signals("sailing")
    for second in range(0, 120):
        heading = math.radians(350 if second % 2 else 10)
        boat.message(
            at(second),
            127250,
            ("vessel_heading.heading", heading, "rad"),
            ("vessel_heading.reference", "True", None),
            source=1,
        )
        for angle, reference in ((-0.5, "Apparent"), (0.75, "True (boat referenced)")):
            boat.message(
                at(second),
                WIND,
                ("wind_data.wind_speed", 6.0 + second / 60, "m/s"),
                ("wind_data.wind_angle", angle, "rad"),
                ("wind_data.reference", reference, None),
                source=2,
            )
    for second in range(0, 60):
        boat.message(
            at(second),
            127250,
            ("vessel_heading.heading", 3.0, "rad"),
            ("vessel_heading.reference", "True", None),
            source=4,
        )
        boat.message(at(second), 128259, ("speed.speed_water_referenced", 3.5, "m/s"), source=3)
    return boat


def tanks() -> Signals:
    """Fuel and water share instances; another sender of the fuel tank 0 is heard for a shorter time."""
    boat = Signals("tanks")
    for second in range(0, 600, 10):
        for fluid, instance, level in (("Fuel", 0, 0.5), ("Fuel", 1, 0.25), ("Water", 0, 0.9)):
            boat.message(
                at(second),
                127505,
                ("fluid_level.type", fluid, None),
                ("fluid_level.level", level + second / 60_000, "ratio"),
                ("fluid_level.capacity", 0.4, "m3"),
                instance=instance,
            )
    boat.message(
        at(5), 127505, ("fluid_level.type", "Fuel", None), ("fluid_level.level", 0.1, "ratio"), instance=0, source=9
    )
    boat.message(at(6), 127505, ("fluid_level.type", "Fuel", None), ("fluid_level.level", 1.3, "ratio"), instance=0)
    return boat


def harbour() -> Signals:
    """AIS: a ferry that says its name after its position, a buoy, this boat's own transponder, and nonsense."""
    boat = Signals("harbour")
    ferry, report = 244_650_941, "ais_class_a_position_report"
    for second in range(3):
        boat.message(
            at(second),
            129038,
            (f"{report}.user_id", ferry, None),
            (f"{report}.latitude", 52.0 + second / 100, "deg"),
            (f"{report}.longitude", 5.0, "deg"),
            (f"{report}.sog", 5.0 + second, "m/s"),
            (f"{report}.cog", math.pi, "rad"),
            (f"{report}.nav_status", "Under way using engine", None),
            (f"{report}.ais_transceiver_information", "Channel A VDL reception", None),
        )
    static = "ais_class_a_static_and_voyage_related_data"
    for second, destination in ((10, "HARLINGEN"), (20, "VLIELAND")):
        boat.message(
            at(second),
            129794,
            (f"{static}.user_id", ferry, None),
            (f"{static}.name", "FERRY", None),
            (f"{static}.callsign", "PG9182", None),
            (f"{static}.length", 86.0, "m"),
            (f"{static}.destination", destination, None),
        )
    own = "ais_class_b_position_report"
    boat.message(
        at(1),
        129039,
        (f"{own}.user_id", 244_000_001, None),
        (f"{own}.latitude", 52.0, "deg"),
        (f"{own}.longitude", 5.0, "deg"),
        (f"{own}.ais_transceiver_information", "Channel B VDL transmission", None),
    )
    buoy = "ais_aids_to_navigation_aton_report"
    boat.message(
        at(2),
        129041,
        (f"{buoy}.user_id", 992_446_001, None),
        (f"{buoy}.latitude", 91.0, "deg"),
        (f"{buoy}.longitude", 181.0, "deg"),
        (f"{buoy}.aton_name", "VL 5", None),
    )
    boat.message(at(3), 129038, (f"{report}.user_id", 0, None), (f"{report}.latitude", 1.0, "deg"))
    return boat


def without_seqs() -> Signals:
    """A producer that numbers nothing: only moments tell its messages apart."""
    boat = Signals("without-seqs")
    for second, (speed, reference) in enumerate(
        [(3.0, "Apparent"), (4.0, "Apparent"), (8.0, "True (boat referenced)")]
    ):
        boat.message(at(second), WIND, ("wind_data.wind_speed", speed, "m/s"), ("wind_data.reference", reference, None))
    for row in boat.rows:
        row["lineage"] = row["seq"] = None
    return boat


@pytest.fixture(scope="module")
def hours(spark: SparkSession) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table, in order."""
    tables = pa.concat_tables(
        [
            make().table()
            for make in (
                engines,
                batteries,
                weather,
                without_seqs,
                three_sounders,
                two_monitors,
                sailing,
                tanks,
                harbour,
            )
        ]
    )
    signals = spark.createDataFrame(tables).cache()
    found = {}
    for layout, build in (
        (ENGINE_HOURS, build_engine),
        (ENGINE_METERS, build_engine_meters),
        (ELECTRICAL_HOURS, build_electrical),
        (ENVIRONMENT_HOURS, build_environment),
        (SENSOR_HOURS, build_sensors),
        (NAVIGATION_MINUTES, build_navigation),
        (TANK_HOURS, build_tanks),
        (AIS_TARGETS, build_ais_targets),
    ):
        with tiny_data(spark):
            built = build(signals).toArrow()
        rows = built.select(layout.table.schema.names).cast(layout.table.schema)
        found[layout.name] = rows.sort_by([(key, "ascending") for key in layout.keys]).to_pylist()
    signals.unpersist()
    return found


def test_two_engines_are_told_apart(hours: dict[str, list[dict[str, Any]]]) -> None:
    port, starboard, later, next_day, _ = hours["engine"]
    assert [(row["instance"], row["hour"]) for row in (port, starboard, later, next_day)] == [
        (0, NOON),
        (1, NOON),
        (0, at(3600)),
        (0, at(86_400)),
    ]
    assert (port["rpm_min"], port["rpm_max"]) == (0.0, 2000.0)
    assert port["rpm_mean"] == pytest.approx((300 * 1000 + 300 * 2000 + 5 * 1500) / 905)
    assert starboard["rpm_max"] == 30.0
    assert starboard["coolant_temperature_c_mean"] is None


def test_an_engine_runs_while_it_turns_and_no_longer_than_it_is_heard(hours: dict[str, list[dict[str, Any]]]) -> None:
    port, starboard, later, next_day, warm = hours["engine"]
    assert port["running_seconds"] == 600 + 30  # from 3570 to the end of the hour
    assert starboard["running_seconds"] == 0
    assert later["running_seconds"] == 24 + 10  # the last reading before a silence holds ten seconds
    assert next_day["running_seconds"] == 1
    assert warm["coolant_temperature_c_max"] == pytest.approx(80.0)
    assert warm["running_seconds"] is None, "its speed was not heard"


def test_the_meter_of_an_engine_is_read_from_one_sender(hours: dict[str, list[dict[str, Any]]]) -> None:
    (row,) = hours["engine_meters"]
    assert (row["day"], row["instance"], row["samples"]) == (NOON.date(), 0, 3)
    assert (row["meter_h_first"], row["meter_h_last"]) == (pytest.approx(1_160.5), pytest.approx(1_161.5))


def test_units_become_those_of_gold_and_madness_is_left_out(hours: dict[str, list[dict[str, Any]]]) -> None:
    port = hours["engine"][0]
    assert port["coolant_temperature_c_max"] == pytest.approx(80.0)
    assert port["oil_pressure_kpa_mean"] == pytest.approx(400.0)
    assert port["fuel_rate_l_per_h_mean"] == 12.5


def test_batteries_are_told_apart(hours: dict[str, list[dict[str, Any]]]) -> None:
    first, second = [row for row in hours["electrical"] if row["channel"] == "batteries"]
    assert (first["instance"], first["voltage_v_min"], first["voltage_v_max"]) == (0, 12.5, pytest.approx(13.4))
    assert first["voltage_v_mean"] == pytest.approx(12.95)
    assert first["charge_percent_mean"] is None
    assert (second["instance"], second["charge_percent_mean"]) == (1, pytest.approx(80.0))
    assert first["samples"] == 20


def test_two_devices_with_the_same_battery_are_not_averaged(hours: dict[str, list[dict[str, Any]]]) -> None:
    (row,) = [row for row in hours["electrical"] if row["channel"] == "two-monitors"]
    assert [row[f"voltage_v_{what}"] for what in ("min", "mean", "max")] == [12.0, 12.0, 12.0]
    assert row["samples"] == 120


def test_of_several_sounders_the_one_heard_longest_counts_with_its_offset(
    hours: dict[str, list[dict[str, Any]]],
) -> None:
    noon, later = [row for row in hours["environment"] if row["channel"] == "sounders"]
    # The third is heard in 50 minutes of the day, the first in 30, the second in 20.
    for row in (noon, later):
        assert [row[f"depth_m_{what}"] for what in ("min", "mean", "max")] == [10.5, 10.5, 10.5]
    assert (noon["samples"], later["samples"]) == (240, 60)


def test_every_sounder_is_in_the_table_of_sensors(hours: dict[str, list[dict[str, Any]]]) -> None:
    rows = [row for row in hours["sensors"] if row["channel"] == "sounders" and row["quantity"] == "depth_m"]
    seen = [
        (row["hour"], row["device"][-1], row["source"], row["primary"], row["mean"], row["samples"]) for row in rows
    ]
    assert seen == [
        (NOON, "a", 35, False, 10.5, 900),  # claimed or not, it is one sounder
        (NOON, "b", 36, False, 200.0, 1200),
        (NOON, "c", 37, True, 10.5, 240),
        (at(3600), "c", 37, True, 10.5, 60),
    ]
    raw = [row for row in hours["sensors"] if row["quantity"] == "depth_below_transducer_m"]
    assert {row["mean"] for row in raw if row["channel"] == "sounders" and row["primary"]} == {12.0}


def test_wind_counts_as_what_its_message_says_it_is(hours: dict[str, list[dict[str, Any]]]) -> None:
    noon = next(row for row in hours["environment"] if row["channel"] == "weather")
    assert [noon[f"apparent_wind_mps_{what}"] for what in ("min", "mean", "max")] == [5.0, 6.0, 7.0]
    assert noon["true_wind_mps_max"] == 9.0


def test_navigation_has_every_minute_with_means_of_directions(hours: dict[str, list[dict[str, Any]]]) -> None:
    first, second = [row for row in hours["navigation"] if row["channel"] == "sailing"]
    assert (first["time"], second["time"]) == (NOON, at(60))
    for row in (first, second):
        assert min(row["heading_true_deg"], 360 - row["heading_true_deg"]) == pytest.approx(0, abs=1e-3)
        assert row["apparent_wind_angle_deg"] == pytest.approx(360 - math.degrees(0.5), abs=1e-3)
        assert row["true_wind_angle_deg"] == pytest.approx(math.degrees(0.75), abs=1e-3)
        assert row["heading_magnetic_deg"] is row["ground_wind_from_deg"] is None
    assert (first["water_speed_mps"], second["water_speed_mps"]) == (3.5, None)
    assert first["true_wind_mps"] == pytest.approx(6 + 29.5 / 60)


def test_a_tank_is_a_fluid_and_an_instance(hours: dict[str, list[dict[str, Any]]]) -> None:
    rows = [row for row in hours["tanks"] if row["channel"] == "tanks"]
    levels = [(row["fluid"], row["instance"], round(row["level_percent_min"], 6), row["samples"]) for row in rows]
    assert levels == [("Fuel", 0, 50.0, 120), ("Fuel", 1, 25.0, 120), ("Water", 0, 90.0, 120)]
    assert {round(row["capacity_l"], 6) for row in rows} == {400.0}
    assert rows[0]["level_percent_max"] == pytest.approx(50 + 590 / 600)


def test_an_ais_target_has_what_was_heard_of_it_last(hours: dict[str, list[dict[str, Any]]]) -> None:
    own, ferry, buoy = [row for row in hours["ais_targets"] if row["channel"] == "harbour"]
    assert (ferry["mmsi"], ferry["kind"], ferry["own"]) == (244_650_941, "class A", False)
    assert (ferry["name"], ferry["callsign"], ferry["destination"]) == ("FERRY", "PG9182", "VLIELAND")
    assert (ferry["first_time"], ferry["last_time"], ferry["position_time"]) == (NOON, at(20), at(2))
    assert (ferry["latitude"], ferry["positions"], ferry["messages"]) == (52.02, 3, 5)
    assert (ferry["speed_mps"], ferry["speed_max_mps"], ferry["course_deg"]) == (7.0, 7.0, 180.0)
    assert (own["mmsi"], own["own"], own["name"]) == (244_000_001, True, None)
    assert (buoy["kind"], buoy["name"], buoy["positions"], buoy["latitude"]) == ("aid to navigation", "VL 5", 0, None)


def test_messages_without_seqs_are_not_taken_for_one(hours: dict[str, list[dict[str, Any]]]) -> None:
    (noon,) = [row for row in hours["environment"] if row["channel"] == "without-seqs"]
    assert (noon["apparent_wind_mps_mean"], noon["true_wind_mps_mean"], noon["samples"]) == (3.5, 8.0, 3)


def test_a_temperature_goes_where_its_source_says(hours: dict[str, list[dict[str, Any]]]) -> None:
    noon = next(row for row in hours["environment"] if row["channel"] == "weather")
    assert noon["water_temperature_c_mean"] == pytest.approx(15.0)
    assert noon["air_temperature_c_max"] == pytest.approx(20.0)
    assert noon["cabin_temperature_c_mean"] is None
    assert noon["pressure_hpa_mean"] == pytest.approx(1013.0)


def test_hours_end_on_the_hour(hours: dict[str, list[dict[str, Any]]]) -> None:
    noon, later = [row for row in hours["environment"] if row["channel"] == "weather"]
    assert (noon["hour"], later["hour"]) == (NOON, at(3600))
    assert [noon[f"depth_m_{what}"] for what in ("min", "mean", "max")] == [10.0, 14.5, 19.0]
    assert [later[f"depth_m_{what}"] for what in ("min", "mean", "max")] == [20.0, 24.5, 29.0]
    assert later["samples"] == 10  # not the one in fathoms


@pytest.mark.parametrize("measures", [ENGINE, ELECTRICAL, ENVIRONMENT])
def test_every_measure_can_be_converted_and_is_believable_somewhere(measures: tuple[Any, ...]) -> None:
    for measure in measures:
        assert any(wanted == measure.unit for _, wanted in CONVERSIONS), measure
        assert measure.low < measure.high, measure
        assert bool(measure.texts) == (measure.qualifier is not None), measure
    assert len(signal_names(measures)) == len(set(signal_names(measures)))
