"""Whole conversations, kept as text and reviewed as text.

TIDELOG_REWRITE_TRANSCRIPTS=1 writes the files anew; what changed is then read in the diff, line by line.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.core.raft.script import Script, replay

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_group_says_what_the_transcript_says(path: Path) -> None:
    happened = replay(path)
    if os.environ.get("TIDELOG_REWRITE_TRANSCRIPTS") == "1":
        path.write_text(happened)
    assert path.read_text().splitlines() == happened.splitlines()


def test_every_conversation_is_there() -> None:
    assert len(TRANSCRIPTS) >= 9
    assert all(path.read_text().startswith("# ") for path in TRANSCRIPTS)


def test_an_unknown_command_is_an_error_not_a_remark() -> None:
    script = Script()
    script.run("group a b c")
    with pytest.raises(AssertionError, match="no such command"):
        script.run("hope a")
