"""python-liftbridge 0.0.7, unmodified, in a venv of its own, against a real node process."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.gateways.gateway_kit import HOST, NodeProcess
from tests.patience import patient
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements" / "liftbridge-client.txt"
INSTALL_S = 240.0
RUN_S = 100.0


@pytest.fixture(scope="module")
def client_python(pytestconfig: pytest.Config) -> Path:
    """Its interpreter; made anew whenever the requirements change, and kept for the next run."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("liftbridge-client") / digest
    python = folder / "bin" / "python"
    made = folder / "made"
    if not made.exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
        subprocess.run([*pip, "-r", str(REQUIREMENTS)], check=True, timeout=patient(INSTALL_S))
        made.touch()
    return python


@contextmanager
def node_process(folder: Path) -> Iterator[int]:
    """`tidelog node` with a gateway; the gateway's port, once it serves."""
    node = NodeProcess(folder, "n1", {"n1": f"{HOST}:{free_port()}"})
    try:
        node.start()
        node.wait_served()
        yield node.port
        node.terminate()
    finally:
        node.kill()


def test_python_liftbridge_creates_publishes_subscribes_and_reads_metadata(client_python: Path, tmp_path: Path) -> None:
    with node_process(tmp_path) as port:
        script = Path(__file__).with_name("python_liftbridge_run.py")
        environment = {**os.environ, "TZ": "UTC", "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(
            [str(client_python), str(script), f"{HOST}:{port}"],
            capture_output=True,
            text=True,
            timeout=patient(RUN_S),
            env=environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr + (tmp_path / "n1.log").read_text()
    saw = json.loads(done.stdout.splitlines()[-1])
    assert saw["exists"]
    assert saw["missing"]
    values = [message["value"] for message in saw["earliest"]]
    assert sorted(values) == ["by subject", "message 0", "message 1", "message 2"]
    assert values.index("message 0") < values.index("message 1"), "NONE and LEADER go the same way"
    assert values.index("message 2") < values.index("by subject")
    assert all(message["subject"] == "weather" for message in saw["earliest"])
    assert saw["time_delta"] == saw["earliest"]
    assert saw["latest"] == saw["earliest"][3:]
    assert saw["offset"] == saw["earliest"][2:]
    assert saw["new_only"] == "message 3"
    assert saw["brokers"] == [["n1", HOST, port]]
    assert saw["streams"]["weather-stream"] == "weather"
    assert saw["streams"]["everywhere"] == "all"
