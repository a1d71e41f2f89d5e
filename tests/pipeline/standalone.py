"""A Spark cluster on this machine for tests: a standalone master and workers, each a process group of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyspark
from benchmarks.kits.cluster_kit import HOST

from tests.patience import patient
from tests.ports import free_port
from tidelog.pipeline.engine import find_java

START_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningProcess:
    number: int
    parent: int
    command: str


def running_processes() -> list[RunningProcess]:
    """What runs on this machine now, without what ended and was not waited for."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it ended while we looked
        if state != "Z":
            found.append(RunningProcess(number=int(entry.name), parent=int(parent), command=command))
    return found


class SparkCluster:
    """Started with the context, gone after it. A killed worker takes its executors with it, as a machine would."""

    def __init__(self, folder: Path, *, workers: int) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self._home = Path(pyspark.__file__).parent
        self._port = free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._workers = [f"worker-{number}" for number in range(1, workers + 1)]

    @property
    def master(self) -> str:
        return f"spark://{HOST}:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """For the driver too: everybody finds the same Java, the same modules and this machine's loopback."""
        return {
            **os.environ,
            "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": HOST,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }

    def __enter__(self) -> Self:
        try:
            self._start("master", "master.Master", "--port", str(self._port), said="I have been elected leader")
            for name in self._workers:
                place = str(self._folder / name)
                self._start(
                    name, "worker.Worker", *("-c", "1", "-m", "1g", "-d", place, self.master), said="registered"
                )
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        for name in list(self._processes):
            self.kill(name)

    def kill(self, name: str) -> None:
        """kill -9, executors and their Python workers included."""
        process = self._processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)

    def executors(self) -> list[int]:
        """Java processes that run tasks, on whichever worker."""
        return [process.number for process in self._below() if "CoarseGrainedExecutorBackend" in process.command]

    def python_workers(self) -> list[int]:
        """Processes in which the tasks' Python runs: children of an executor's daemon."""
        below = self._below()
        daemons = {process.number for process in below if "pyspark.daemon" in process.command}
        return [process.number for process in below if process.number in daemons and process.parent in daemons]

    def _below(self) -> list[RunningProcess]:
        """All that the workers have started. By descent: Spark's daemons of Python leave the process group."""
        below = {process.pid for name, process in self._processes.items() if name in self._workers}
        left, found = running_processes(), []
        while children := [process for process in left if process.parent in below]:
            found += children
            below |= {process.number for process in children}
            left = [process for process in left if process.number not in below]
        return found

    def said(self, name: str) -> str:
        path = self._folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _start(self, name: str, kind: str, *arguments: str, said: str) -> None:
        command = [str(self._home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        command += ["--host", HOST, "--webui-port", "0", *arguments]
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                command, env=self.environment, start_new_session=True, stdout=log, stderr=log
            )
        deadline = time.monotonic() + patient(START_S)
        while said not in self.said(name):
            assert self._processes[name].poll() is None, f"{name} ended: {self.said(name)[-2000:]}"
            assert time.monotonic() < deadline, f"{name} does not come up: {self.said(name)[-2000:]}"
            time.sleep(0.1)
