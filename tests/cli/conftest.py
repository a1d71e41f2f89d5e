"""Fixtures of the command-line tests."""

from __future__ import annotations

import pytest

from tests.cli.commands import Tidelog


@pytest.fixture
def tidelog(capsys: pytest.CaptureFixture[str]) -> Tidelog:
    return Tidelog(capsys)
