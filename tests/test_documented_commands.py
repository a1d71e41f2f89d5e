"""The commands and the Python code in README.md and docs/: flags exist, code runs.

A command is any line of a block, or text in backticks, that begins with `tidelog`. Its subcommand and every flag must
exist; a line without placeholders must also parse. Decision records tell what was true when they were written.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import re
import shlex
import textwrap
import time
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner

from tests.gateways.gateway_kit import opened
from tidelog.cli.main import cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = {"errors.md", "invariants.md", "api.md"}

FENCED = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:^(?: {4}.*)?\n)+", flags=re.MULTILINE)
IN_BACKTICKS = re.compile(r"`(tidelog\s[^`]+)`")
PLACEHOLDER = re.compile(r"^(\.\.\.|[A-Z][A-Z_-]*|\[.*\]?|.*\])$")


class Documented(NamedTuple):
    page: str
    text: str
    is_line: bool
    """A line of a block, to be typed as it is; not a command that a sentence mentions."""

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Language and text of every block of code."""
    text = page.read_text()
    yield from FENCED.findall(text)
    for found in INDENTED.findall("\n" + FENCED.sub("", text)):
        if found.strip():
            yield "", textwrap.dedent(found).strip("\n")


def documented() -> Iterator[Documented]:
    for page in PAGES:
        if "decisions" in page.parts or page.name in GENERATED:
            continue
        name = str(page.relative_to(ROOT))
        lines = [line for _, block in blocks(page) for line in block.replace("\\\n", " ").splitlines()]
        for line in lines:
            for part in re.split(r"\s#|\s\|", line):
                command = part.strip().removeprefix("$ ")
                if command.startswith("tidelog "):
                    yield Documented(name, " ".join(command.split()), is_line=True)
        for found in IN_BACKTICKS.findall(FENCED.sub("", page.read_text())):
            yield Documented(name, " ".join(found.split()), is_line=False)


COMMANDS = sorted(set(documented()))


def command_of(words: list[str]) -> tuple[list[str], click.Command, list[str]]:
    """The path of the command that these words call, the command, and the words left for it."""
    path: list[str] = []
    command: click.Command = cli
    while words and isinstance(command, click.Group):
        if words[0].startswith("-") or PLACEHOLDER.match(words[0]):
            break
        name, words = words[0], words[1:]
        following = command.get_command(click.Context(command), name)
        assert following is not None, f"there is no command {' '.join([*path, name])}"
        path.append(name)
        command = following
    return path, command, words


@cache
def flags_of(*path: str) -> frozenset[str]:
    """Every flag in the help of a command, without its dashes."""
    shown = CliRunner().invoke(cli, [*path, "--help"])
    assert shown.exit_code == 0, shown.output
    return frozenset(re.findall(r"(?<![\w-])--?([a-z][\w-]*)", shown.output)) | {"help", "h", "version"}


def words_of(text: str) -> list[str]:
    return [word.strip("[]") for word in shlex.split(text) if word != "..."][1:]


def test_the_docs_are_read() -> None:
    assert len(COMMANDS) > 80
    assert {command.page for command in COMMANDS} >= {"README.md", "docs/client.md", "docs/cluster.md"}


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_documented_command_and_its_flags_exist(command: Documented) -> None:
    path, _, rest = command_of(words_of(command.text))
    flags = [word.lstrip("-").partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
    unknown = sorted({flag for flag in flags if not flag.endswith("*") and flag not in flags_of(*path)})
    assert not unknown, f"tidelog {' '.join(path)} has no {unknown}"


def is_complete(command: Documented) -> bool:
    return command.is_line and not any(PLACEHOLDER.match(word) for word in command.text.split())


@pytest.mark.parametrize("command", [one for one in COMMANDS if is_complete(one)], ids=str)
def test_a_documented_line_parses(command: Documented) -> None:
    path, found, rest = command_of(words_of(command.text))
    problem = ""
    try:
        found.make_context(" ".join(path), rest)
    except click.UsageError as error:
        problem = error.format_message()
    assert not problem or "does not exist" in problem, "its files need not be here; all else must be right"


# --- Python ----------------------------------------------------------------------------------------


def python_blocks(name: str) -> list[str]:
    page = ROOT / name
    return [text for language, text in blocks(page) if language == "python" or text.startswith("from tidelog")]


PYTHON = [(page, place) for page in PAGES for place in range(len(python_blocks(str(page.relative_to(ROOT)))))]


@pytest.mark.parametrize(("page", "place"), PYTHON, ids=str)
def test_documented_python_compiles_and_its_imports_exist(page: Path, place: int) -> None:
    text = python_blocks(str(page.relative_to(ROOT)))[place]
    compile(text, page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    exec("\n".join(ast.unparse(node) for node in imports), {})


async def execute(text: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run code as in an asynchronous REPL; returns its names."""
    result = eval(compile(text, "docs", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if result is not None:
        await result
    return names


async def test_the_readme_s_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    now_us = time.time_ns() // 1000
    names = {"time": time, "uuid": uuid, "time_us": now_us, "can_id": 0x09F80200, "payload": bytes(8)}
    for text in python_blocks("README.md"):
        await execute(text, names)
    assert names["seq"] == 1
    assert names["offsets"] == range(1)


async def test_the_embedded_log_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with contextlib.suppress(TimeoutError):  # the tail at its end waits for more records
        async with asyncio.timeout(2):
            await execute(python_blocks("docs/embedded.md")[0], names)
    assert names["first"] == names["offset"] + 1
    assert names["record"].value == b"b", "read before the tail began"


@pytest.mark.slow
async def test_the_clients_of_the_docs_run_against_three_nodes(tmp_path: Path) -> None:
    async with opened(tmp_path, count=3) as cluster:
        address = cluster.peers["n1"]
        for text in python_blocks("docs/client.md")[:2]:
            await asyncio.to_thread(exec, text.replace("127.0.0.1:9500", address), {})
        catalog = cluster.nodes["n1"].channels.catalog
        assert catalog.channel("positions") is not None
