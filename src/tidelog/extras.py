"""Optional packages: one that is not installed becomes an error that names the extra which brings it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tidelog.errors import MissingExtra

_EXTRAS: Final = {
    "can": "can",
    "deltalake": "spark",
    "nats": "nats",
    "nkeys": "nats",
    "nmea2000": "decode",
    "pandas": "spark",
    "plotly": "spark",
    "pyiceberg": "iceberg",
    "pyspark": "spark",
}
"""Package to extra."""


@contextmanager
def optional(needed_for: str) -> Iterator[None]:
    """For imports of optional packages, direct or not. `needed_for` begins the message of `MissingExtra`."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise MissingExtra(extra=extra, needed_for=needed_for) from error
