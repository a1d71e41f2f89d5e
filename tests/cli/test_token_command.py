"""`tidelog token`: a file that a server can use, secrets that are in it nowhere, and clear refusals."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cli.commands import Tidelog, in_subprocess
from tidelog.http.access import Access, AccessOptions
from tidelog.storage.log.writer import wall_clock_us


def test_a_new_token_opens_what_it_was_made_for_until_it_is_revoked(tidelog: Tidelog, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    made = tidelog("token", "new", "app", "--scopes", "read:data", "--instances", "boat-*", "--file", file, "--json")
    secret = made.json["token"]
    assert secret not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    access = Access(AccessOptions(token_file=file), now_us=wall_clock_us)
    holder = access.caller({"Authorization": f"Bearer {secret}"}, None)
    assert (holder.name, holder.may("read:data"), holder.may("read:status")) == ("app", True, False)
    assert (holder.sees("boat-001"), holder.sees("ship")) == (True, False)
    assert tidelog("token", "revoke", "app", "--file", file).out == "app is revoked\n"
    assert tidelog("token", "list", "--file", file, "--json").out == "[]\n"


def test_the_secret_is_all_that_is_printed_to_stdout(tidelog: Tidelog, tmp_path: Path) -> None:
    made = tidelog("token", "new", "--file", tmp_path / "tokens")
    assert made.out.startswith("tdl_")
    assert len(made.out.split()) == 1
    assert "the only time it is shown" in made.err


def test_comments_mode_and_other_tokens_stay(tidelog: Tidelog, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    tidelog("token", "new", "one", "--file", file)
    file.write_text("# of the crew\n" + file.read_text())
    file.chmod(0o640)
    before = file.read_text()
    tidelog("token", "new", "two", "--file", file)
    assert file.read_text().startswith(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    tidelog("token", "revoke", "two", "--file", file)
    assert file.read_text() == before
    shown = tidelog("token", "list", "--file", file).out
    assert "one" in shown
    assert "two" not in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["new", "one"], "has a token of one already; revoke that one first"),
        (["new", "two", "--scopes", "write:all"], "is not a scope; the scopes are read:status"),
        (["new", "two words"], "is not a name"),
        (["new", "two", "--instances", "../x"], "is not an instance"),
        (["revoke", "nobody"], "has no token of nobody; see `tidelog token list"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(
    tidelog: Tidelog, tmp_path: Path, arguments: list[str], words: str
) -> None:
    file = tmp_path / "tokens"
    tidelog("token", "new", "one", "--file", file)
    before = file.read_bytes()
    assert words in tidelog("token", *arguments, "--file", file, code=2).err
    assert file.read_bytes() == before


def test_a_file_that_a_server_would_refuse_is_refused_here_too(tidelog: Tidelog, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    assert "there is no such file" in tidelog("token", "list", "--file", file, code=2).err
    file.write_text("what is this\n")
    file.chmod(0o600)
    assert "line 1" in tidelog("token", "new", "one", "--file", file, code=2).err
    file.write_text("")
    file.chmod(0o644)
    assert "chmod 600" in tidelog("token", "new", "one", "--file", file, code=2).err


def test_two_commands_at_once_lose_no_token(tidelog: Tidelog, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda number: in_subprocess("token", "new", f"n{number}", "--file", file), range(4)))
    assert [one.returncode for one in done] == [0] * 4
    listed = json.loads(tidelog("token", "list", "--file", file, "--json").out)
    assert [row["name"] for row in listed] == ["n0", "n1", "n2", "n3"]
