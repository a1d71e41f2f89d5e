"""Which days new files touch, told from the bounds of their times: no file is opened where they are plain."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from tidelog.pipeline.gold import health_steps
from tidelog.pipeline.tables.table import DataFile, Partition, Table

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
NOBODY: Any = None


def file(earliest: datetime | None, latest: datetime | None, *, appended: datetime = NOON, nulls: int = 0) -> DataFile:
    return DataFile(
        path="some.parquet",
        bytes=1,
        rows=1,
        partition=("2026-06-01", "boat-1"),
        minimums={"time": earliest, "append_time": appended},
        maximums={"time": latest},
        nulls={"time": nulls},
    )


def days(*files: DataFile) -> set[Partition]:
    """Without Spark and without a table: opening a file fails."""
    return health_steps.touched_days(NOBODY, cast("Table", NOBODY), files)


def test_a_live_file_touches_its_day() -> None:
    assert days(file(NOON - timedelta(seconds=2), NOON)) == {("2026-06-01", "boat-1")}


def test_a_file_over_midnight_touches_both_days() -> None:
    found = days(file(NOON - timedelta(hours=13), NOON - timedelta(hours=1)))
    assert found == {("2026-05-31", "boat-1"), ("2026-06-01", "boat-1")}


def test_late_backfill_touches_the_day_it_is_of() -> None:
    week = timedelta(days=7)
    assert days(file(NOON - week, NOON - week)) == {("2026-05-25", "boat-1")}


@pytest.mark.parametrize(
    "unclear",
    [
        file(datetime(1970, 1, 1, tzinfo=UTC), NOON),
        file(NOON, NOON + timedelta(days=365)),
        file(NOON - timedelta(days=3), NOON),
        file(None, None),
        file(NOON, NOON, nulls=1),
    ],
    ids=["never set", "ahead", "days between", "no bounds", "no time"],
)
def test_a_file_whose_bounds_do_not_tell_is_opened(unclear: DataFile) -> None:
    with pytest.raises(AttributeError):
        days(unclear)
