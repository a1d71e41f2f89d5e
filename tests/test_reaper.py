"""A test run that is interrupted leaves no process behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import block_until, patient
from tests.reaper import VARIABLE

DEADLINE_S = 60.0
ROOT = Path(__file__).parent.parent
TINY = """
import subprocess, sys, time
from pathlib import Path
from benchmarks.kits.cluster_kit import ClusterKit

def test_that_never_ends(tmp_path):
    kit = ClusterKit(tmp_path, nodes=1)  # not as a context manager: nobody cleans up
    kit.start("n1")
    child = subprocess.Popen([sys.executable, "-c",
        "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "print(p.pid, flush=True); time.sleep(600)"], stdout=subprocess.PIPE, text=True)
    grandchild = int(child.stdout.readline())
    print(f"started {kit.nodes['n1'].process.pid} {child.pid} {grandchild} .", flush=True)
    time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found by Linux's /proc")
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_killed_test_run_leaves_no_process_behind(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "test_tiny.py").write_text(TINY)
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE} | {"PYTHONPATH": path()}
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-p", "tests.conftest"]
    command += ["-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path / "test_tiny.py")]
    said = tmp_path / "said"
    with said.open("wb") as output:
        # A shell starts what it puts in the background deaf to Ctrl-C, and its children would stay so.
        run = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            cwd=tmp_path,
            env=environment,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    try:
        block_until(lambda: "started" in said.read_text(), deadline_s=DEADLINE_S, what=f"the start; {said.read_text()}")
        found = re.search(r"started (\d+) (\d+) (\d+) \.", said.read_text())
        assert found
        pids = [int(one) for one in found.groups()]
        assert all(map(is_alive, pids))
    finally:
        run.send_signal(number)
        try:
            run.wait(timeout=patient(DEADLINE_S))
        finally:
            run.kill()
            run.wait()
    block_until(lambda: not any(map(is_alive, pids)), deadline_s=DEADLINE_S, what=f"the end of {pids}")


def path() -> str:
    """Our tree, from wherever."""
    return os.pathsep.join([str(ROOT), str(ROOT / "src")])
