"""Deadlines of tests follow the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import patience
from tests.patience import patient

SPIN = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
BUSY = 12


def test_a_deadline_is_never_shorter_than_it_says() -> None:
    assert patient(30.0) >= 30.0
    assert patient(30.0) <= 30.0 * patience.SLOWNESS_MAX


def test_it_is_measured_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([3.0, 0.2, 99.0])
    monkeypatch.setattr(patience, "measured_slowness", lambda: next(found))
    monkeypatch.setattr(patience, "_measured_at", None)
    monkeypatch.setattr(patience, "_slowness", 1.0)
    assert [patient(2.0), patient(2.0)] == [6.0, 6.0]
    monkeypatch.setattr(patience, "_measured_at", -1e9)
    assert patient(2.0) == 2.0, "an idle machine shortens nothing"
    monkeypatch.setattr(patience, "_measured_at", -1e9)
    assert patient(2.0) == 2.0 * patience.SLOWNESS_MAX


@pytest.mark.slow
def test_a_busy_machine_is_waited_for() -> None:
    idle = min(patience._chore_s() for _ in range(5))
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(BUSY)]
    try:
        busy = max(patience._chore_s() for _ in range(20))
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    assert busy > 1.5 * idle


@pytest.mark.slow
def test_the_limit_of_a_test_grows_too(tmp_path: Path) -> None:
    """A test of three seconds under a limit of one, on a machine that is said to be ten times slower."""
    (tmp_path / "test_tiny.py").write_text(
        "import time, pytest\nfrom tests import patience\n\n"
        "@pytest.mark.timeout(1)\ndef test_that_takes_long():\n    time.sleep(3)\n"
    )
    (tmp_path / "slow_machine.py").write_text("from tests import patience\npatience.measured_slowness = lambda: 10.0\n")
    root = Path(__file__).parent.parent
    places = os.pathsep.join(map(str, (root, root / "src", tmp_path)))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest"]
    command += ["-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path / "test_tiny.py")]
    for plugin, code in ((["-p", "slow_machine"], 0), ([], 1)):
        environment = os.environ | {"PYTHONPATH": places}
        if not plugin:
            (tmp_path / "test_tiny.py").write_text(
                "import time, pytest\nfrom tests import patience\npatience.measured_slowness = lambda: 1.0\n"
                "patience._measured_at = None\n\n"
                "@pytest.mark.timeout(1)\ndef test_that_takes_long():\n    time.sleep(3)\n"
            )
        done = subprocess.run([*command, *plugin], capture_output=True, text=True, env=environment, timeout=patient(60))
        assert done.returncode == code, done.stdout + done.stderr
