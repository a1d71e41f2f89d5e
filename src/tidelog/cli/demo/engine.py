"""Spark for the demo: small, started beside other work, everything temporary in one folder, and gone when it is over.

It is started by a thread of its own, so that a signal never finds a Java that is half started and that nobody could
end.

DE1  After `close`, however it came to it, no Java of ours and no worker runs (EN2), so the folder can be removed.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.pipeline.engine import EngineOptions, all_settings, start_engine, stop_engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OPTIONS: Final = EngineOptions(master="local[2]", name="tidelog-demo", driver_memory="1g", shuffle_partitions=2)
_JAVA_FLAGS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""A Java that runs for half a minute is quicker without its second compiler; and it leaves no file elsewhere."""


class DemoEngine:
    """One session that writes into `scratch` and nowhere else. Close it."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._starting = threading.Thread(target=self._start, name="demo-spark", daemon=True)
        # Not join(): one that a signal interrupts takes the thread for ended, and the next one waits for nothing.
        self._started = threading.Event()
        self._session: SparkSession | None = None
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Begin to start Spark, once, and do not wait for it."""
        if self._starting.ident is None:
            self._starting.start()

    def session(self) -> SparkSession:
        """The session, as soon as it is there. Raises `EngineMissing` if Spark did not start."""
        self.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure
        assert self._session is not None
        return self._session

    def close(self) -> None:
        """DE1."""
        if self._starting.ident is None:
            return
        self._started.wait()
        if self._session is not None:
            stop_engine()

    def _start(self) -> None:
        try:
            self._scratch.mkdir()
            java = all_settings(_OPTIONS)["spark.driver.extraJavaOptions"]
            settings = {
                "spark.sql.warehouse.dir": str(self._scratch / "warehouse"),
                "spark.driver.extraJavaOptions": f'{java} {_JAVA_FLAGS} "-Djava.io.tmpdir={self._scratch}"',
                # The path of such a socket may have 107 bytes, and nobody knows how long that of our folder is.
                "spark.python.unix.domain.socket.enabled": "false",
            }
            self._session = start_engine(replace(_OPTIONS, scratch=str(self._scratch), settings=settings))
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()
