"""Where Spark finds `format("tidelog")` by itself: it imports every top-level module named `pyspark_*`."""

from tidelog.pipeline.sources.source import TidelogSource as DefaultSource

__all__ = ["DefaultSource"]
