"""A missing optional package is a typed error that names its extra."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.errors import MissingExtra
from tidelog.extras import optional

BLOCKED = """
import sys
sys.modules[{package!r}] = None
from tidelog.cli.main import run
sys.exit(run({arguments!r}))
"""


@pytest.mark.parametrize(("package", "extra"), [("pyspark", "spark"), ("pyiceberg", "iceberg"), ("can", "can")])
def test_a_missing_package_becomes_an_error_that_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"^a test needs .* pip install 'tidelog\[{extra}\]'"), optional("a test"):
        __import__(f"{package}.anything")


def test_a_missing_package_of_no_extra_stays_what_it_is() -> None:
    with pytest.raises(ModuleNotFoundError), optional("a test"):
        __import__("no_package_of_this_name")


@pytest.mark.parametrize(
    ("package", "arguments", "extra"),
    [
        ("pyspark", ["pipeline", "run"], "spark"),
        ("deltalake", ["pipeline", "status"], "spark"),
        ("pyiceberg", ["pipeline", "status", "-format", "iceberg"], "iceberg"),
        ("plotly", ["pipeline", "report"], "spark"),
    ],
)
def test_a_command_without_its_extra_says_what_to_install(
    tmp_path: Path, package: str, arguments: list[str], extra: str
) -> None:
    (tmp_path / "logs").mkdir()
    flags = ["-path", str(tmp_path / "logs"), "-tables", str(tmp_path / "tables")]
    code = BLOCKED.format(package=package, arguments=[*arguments, *flags])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert f"pip install 'tidelog[{extra}]'" in done.stderr, done.stderr
    assert done.returncode == 2, "unusable, not a bug"
