"""Tidiness as a test: what reviewers would otherwise have to say again and again.

What ruff can check (print, imports, names) is left to ruff. Files count from the moment they exist,
not from the moment they are committed, so a complaint comes before the commit and not after.
"""

from __future__ import annotations

import ast
import io
import os
import re
import shutil
import subprocess
import tokenize
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70

# Everything forbidden is put together from parts, or this file would be the first to break its rules.
UNFINISHED_WORDS = ["FIX" + "ME", "X" * 3, "TO" + "DO", "HA" + "CK"]
UNFINISHED = re.compile(rf"\b({'|'.join(UNFINISHED_WORDS)})\b")
MACHINE_PATHS = [f"/{folder}/" for folder in ("work", "root", "opt")]
REGISTRY_HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pypi", "python", "org"),
        ("pythonhosted", "org"),
        ("anaconda", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("yarnpkg", "com"),
        ("crates", "io"),
        ("maven", "org"),
        ("maven", "apache", "org"),
        ("proxy", "golang", "org"),
        ("rubygems", "org"),
    )
]

# Words that the glossary has replaced. Each is one word of prose, or of a name in snake or camel case.
RETIRED = {
    "do" + "or": "gateway, listener or LocalChannels",
    "off" + "ice": "leadership",
    "se" + "at": "leadership",
    "dut" + "ies": "controller or maintenance",
    "kee" + "per": "maintenance",
    "me" + "nd": "repair",
    "me" + "nder": "repairer",
    "me" + "nded": "repaired",
    "me" + "nding": "repair",
    "who" + "ever": "the node, caller, member ... that",
    "who" + "mever": "the node, caller, member ... that",
}
_ANY, _CAPITAL = "|".join(RETIRED), "|".join(word.title() for word in RETIRED)
RETIRED_PATTERN = re.compile(
    rf"(?<![A-Za-z])(?i:({_ANY})s?)(?![A-Za-z])|(?<=[a-z])({_CAPITAL})s?(?![a-z])|\b({_CAPITAL})s?(?=[A-Z])"
)
# This one is also a field on the wire, in JSON and in files; in prose it is a boot id, a generation or a run.
RETIRED_IN_PROSE = re.compile(r"\b" + "li" + r"(fe|ves)\b", flags=re.IGNORECASE)
RETIRED_PHRASE = re.compile(r"\bcarr(y|ies|ied|ying) over\b", flags=re.IGNORECASE)
WORDS_ALLOWED = {
    "docs/glossary.md",  # its table of words no longer used
    "docs/openapi/boat.json",
    "docs/signals.md",  # names of canboat's
}
"""Files that must name retired words."""
PHRASES_ALLOWED = ["bench " + "doors", '"' + "doors", "client do" + "ors catchup"]
"""What a command was first called stays."""

HAND_WRITTEN = {".cfg", ".in", ".ini", ".md", ".proto", ".py", ".sh", ".toml", ".yaml", ".yml"}
"""Suffixes of files that people lay out. Captures and other test data keep the bytes they came with."""
HAND_WRITTEN_NAMES = {"Makefile", ".gitignore", "run"}


def listed_by_git() -> list[str]:
    """Tracked files and those that soon will be; nothing where this is not a git checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [name for name in listing.split("\0") if name]


def listed_by_walking() -> list[str]:
    """The same for an unpacked source archive."""
    files = [path for folder in ("src", "benchmarks", "tests", "docs") for path in (ROOT / folder).rglob("*")]
    files += [path for path in ROOT.iterdir() if not path.name.startswith(".")]
    return [str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts]


@cache
def texts() -> dict[str, str]:
    """The content of every text file of the project, by its path from the root."""
    found = {}
    for name in sorted(listed_by_git() or listed_by_walking()):
        path = ROOT / name
        if not path.is_file() or path.is_symlink():
            continue  # deleted but not yet committed, a submodule, a link to a file that is listed itself
        data = path.read_bytes()
        if b"\0" in data:
            continue
        try:
            found[name] = data.decode()
        except UnicodeDecodeError:
            continue  # binary test data
    assert "pyproject.toml" in found, "the listing of files misses the project's own"
    return found


def sources() -> dict[str, str]:
    return {
        name: text
        for name, text in texts().items()
        if name.startswith(("src/", "benchmarks/")) and name.endswith(".py")
    }


def hand_written() -> dict[str, str]:
    return {
        name: text
        for name, text in texts().items()
        if Path(name).suffix in HAND_WRITTEN or Path(name).name in HAND_WRITTEN_NAMES
    }


def complaints(files: dict[str, str], rule: Callable[[str], Iterator[str]]) -> str:
    """What `rule` says about each file, one line each."""
    found = []
    for name, text in files.items():
        try:
            found += [f"{name}: {problem}" for problem in rule(text)]
        except SyntaxError as error:
            found.append(f"{name}: line {error.lineno} does not parse: {error.msg}")
    return "\n".join(found)


# --- the rules -----------------------------------------------------------------------------------


def long_file(text: str) -> Iterator[str]:
    lines = text.count("\n")
    if lines > FILE_LINES_MAX:
        yield f"{lines} lines, at most {FILE_LINES_MAX}; one idea per file: find the second idea and move it out"


def long_functions(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}; move arithmetic to leaf functions"


def missing_docstring(text: str) -> Iterator[str]:
    if not ast.get_docstring(ast.parse(text)):
        yield "the module says not what it is for; open it with a docstring"


def unfinished_words(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        if match := UNFINISHED.search(line):
            yield f"line {number} says {match[1]}; do it now, or open an issue and say why it can wait"


def machine_paths(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        for path in MACHINE_PATHS:
            if path in line:
                yield f"line {number} names {path}, which exists on one machine only"


def registry_hosts(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        for host in REGISTRY_HOSTS:
            if host in line.lower():
                yield f"line {number} names {host}; which registry to use is for each machine's settings"


def prose_of(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of every comment and docstring of a module."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        for inner in getattr(node, "body", None) or () if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            value = inner.value if isinstance(inner, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.lineno, value.value


def retired_words(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        for phrase in PHRASES_ALLOWED:
            line = line.replace(phrase, "")
        if match := RETIRED_PATTERN.search(line):
            word = next(group for group in match.groups() if group)
            yield f"line {number} says {match[0]}; say {RETIRED[word.lower()]}"


def retired_in_prose(prose: str) -> Iterator[str]:
    plain = re.sub(r"`[^`]*`", "", prose)
    for match in (RETIRED_IN_PROSE.search(plain), RETIRED_PHRASE.search(plain)):
        if match:
            yield f"says {match[0]}; say boot id, generation, run or re-record (docs/glossary.md)"


def retired_in_module(text: str) -> Iterator[str]:
    for number, prose in prose_of(text):
        yield from (f"line {number} {problem}" for problem in retired_in_prose(prose))


def riddles(text: str) -> Iterator[str]:
    for number, prose in prose_of(text):
        if re.match(r"\s*Of\b(?! course)", prose):
            yield f"line {number}: a docstring names what it describes first, not what that belongs to"


def untidy_space(text: str) -> Iterator[str]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line != line.rstrip():
            yield f"line {number} ends in whitespace"
    if text and not text.endswith("\n"):
        yield "the last line does not end in a newline"
    if text.endswith("\n\n"):
        yield "the file ends in empty lines"


def relative_links(markdown: str) -> Iterator[str]:
    """The targets of links and images that point into the project, without their fragments."""
    prose = re.sub(r"^(```|~~~).*?^\1", "", markdown, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"`[^`\n]*`", "code", prose)
    inline = re.findall(r"\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'][^)]*)?\)", prose)
    references = re.findall(r"^\[[^\]^]+\]:\s*<?([^\s>]+)>?", prose, flags=re.MULTILINE)
    for target in inline + references:
        path = target.split("#")[0]
        if path and not re.match(r"[a-z][a-z0-9+.-]*:", path, flags=re.IGNORECASE):
            yield path


# --- the project keeps them ----------------------------------------------------------------------


def test_no_source_file_is_too_long() -> None:
    assert not (found := complaints(sources(), long_file)), found


def test_every_function_fits_a_screen() -> None:
    assert not (found := complaints(sources(), long_functions)), found


def test_every_module_opens_with_a_docstring() -> None:
    assert not (found := complaints(sources(), missing_docstring)), found


def test_nothing_is_marked_unfinished() -> None:
    assert not (found := complaints(texts(), unfinished_words)), found


def test_no_file_names_a_path_of_one_machine() -> None:
    assert not (found := complaints(texts(), machine_paths)), found


def test_no_file_names_a_package_registry() -> None:
    assert not (found := complaints(texts(), registry_hosts)), found


def in_todays_words(suffix: str) -> dict[str, str]:
    return {
        name: text
        for name, text in texts().items()
        if name.endswith(suffix) and name not in WORDS_ALLOWED
        if "_pb2" not in name
    }


def test_retired_words_are_gone_from_code_and_docs() -> None:
    files = in_todays_words(".py") | in_todays_words(".md")
    assert not (found := complaints(files, retired_words)), found
    assert not (found := complaints(in_todays_words(".py"), retired_in_module)), found
    assert not (found := complaints(in_todays_words(".md"), retired_in_prose)), found


def test_docstrings_begin_with_what_they_describe() -> None:
    assert not (found := complaints(in_todays_words(".py"), riddles)), found


def test_hand_written_files_have_tidy_space() -> None:
    assert not (found := complaints(hand_written(), untidy_space)), found


def test_relative_links_in_markdown_lead_somewhere() -> None:
    broken = []
    for name, text in texts().items():
        if not name.endswith(".md"):
            continue
        for link in relative_links(text):
            target = (ROOT / name).parent.joinpath(link).resolve()
            # A link that leaves the project may work here and nowhere else.
            if not target.is_relative_to(ROOT) or not target.exists():
                broken.append(f"{name}: {link} leads nowhere")
    assert not broken, "\n".join(broken)


def headings(markdown: str) -> set[str]:
    """The fragments of a page's headings, as GitHub and the site make them."""
    prose = re.sub(r"^(```|~~~).*?^\1", "", markdown, flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"^#+ +(.*)$", prose, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in found}


def test_fragments_of_links_in_markdown_are_headings() -> None:
    broken = []
    for name, text in texts().items():
        if name.endswith(".md"):
            for target, fragment in re.findall(r"\]\(([^)\s#:]*)#([^)\s]+)\)", text):
                page = (ROOT / name).parent.joinpath(target).resolve() if target else ROOT / name
                if page.suffix == ".md" and fragment not in headings(page.read_text()):
                    broken.append(f"{name}: {target}#{fragment} is no heading there")
    assert not broken, "\n".join(broken)


def make_targets() -> tuple[set[str], set[str]]:
    """The targets of the Makefile that are no files, and those of them that say what they do."""
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    phony = {name for line in re.findall(r"^\.PHONY:(.*)$", makefile, flags=re.MULTILINE) for name in line.split()}
    return phony, set(re.findall(r"^([^\s:#]+):[^=].*##", makefile, flags=re.MULTILINE)) & phony


def make_calls(text: str) -> Iterator[str]:
    """The targets that a workflow, a script or a page of the docs calls; those of a workflow's matrix as well."""
    if "make ${{ matrix.target }}" in text:
        yield from re.findall(r"[\w-]+", "".join(re.findall(r"target: \[(.*)\]", text)))
    yield from re.findall(r"(?:^|run: |`|^ {4})make ([a-z][a-z-]*)", text, flags=re.MULTILINE)


def test_workflows_and_docs_call_only_targets_that_exist() -> None:
    targets, _ = make_targets()
    callers = {name: text for name, text in texts().items() if name.endswith((".yml", ".md")) or name == ".ci/run"}
    called = {name: set(make_calls(text)) for name, text in callers.items()}
    unknown = [f"{name}: make {target}" for name, found in called.items() for target in sorted(found - targets)]
    assert not unknown, "\n".join(unknown)
    idle = [name for name in called if name.startswith(".github/workflows/") and not called[name]]
    assert not idle, "a workflow calls make, so that a developer's machine can do the same"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_help_lists_every_documented_target() -> None:
    _, documented = make_targets()
    # A make that runs this test passes its own flags on; help must not depend on them.
    environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    command = ["make", "--no-print-directory", "help"]
    shown = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True, text=True).stdout
    assert "help" in documented
    unlisted = sorted(name for name in documented if not re.search(rf"\bmake {re.escape(name)}\s", shown))
    assert not unlisted, f"`make help` does not show {unlisted}; its pattern must match their names"


# --- and they bite -------------------------------------------------------------------------------


def test_a_file_that_does_not_parse_is_named() -> None:
    assert complaints({"src/half.py": "x = (\n"}, missing_docstring).startswith("src/half.py: line 1 does not parse")


@pytest.mark.parametrize(
    ("rule", "untidy"),
    [
        (long_file, "x = 1\n" * (FILE_LINES_MAX + 1)),
        (long_functions, "def long():\n" + "    pass\n" * FUNCTION_LINES_MAX),
        (long_functions, "class A:\n    async def long():\n" + "        pass\n" * FUNCTION_LINES_MAX),
        (missing_docstring, "import os\n"),
        *((unfinished_words, f"# {word}: later\n") for word in UNFINISHED_WORDS),
        *((machine_paths, f"cd {path}main\n") for path in MACHINE_PATHS),
        *((registry_hosts, f"https://files.{host.upper()}/simple\n") for host in REGISTRY_HOSTS),
        *((retired_words, f"def open_{word}s():\n    pass\n") for word in RETIRED),
        *((retired_words, f"class Node{word.title()}:\n    pass\n") for word in RETIRED),
        (retired_in_module, '"""One ' + "li" + 'fe of a node."""\n'),
        (retired_in_module, "# It is carried " + "over.\n"),
        (riddles, 'x = 1\n"""Of a node."""\n'),
        (untidy_space, "a \n"),
        (untidy_space, "a\r\n"),
        (untidy_space, "a\n\t\nb\n"),
        (untidy_space, "a"),
        (untidy_space, "a\n\n"),
    ],
)
def test_a_rule_notices_what_it_forbids(rule: Callable[[str], Iterator[str]], untidy: str) -> None:
    assert list(rule(untidy))


@pytest.mark.parametrize(
    ("rule", "tidy"),
    [
        (long_file, "x = 1\n" * FILE_LINES_MAX),
        (long_functions, "@cache\ndef long():\n" + "    pass\n" * (FUNCTION_LINES_MAX - 1)),
        (missing_docstring, '"""Why."""\n'),
        (unfinished_words, "A hackney carriage, a fixed todo list.\n"),
        (machine_paths, "src/tidelog/core and a framework/ folder\n"),
        (retired_words, "recommended, amended, outdoors and a seating plan\n"),
        (retired_in_module, '"""The field `' + "li" + 'fe`; it lived on."""\nlife = 1\n'),
        (riddles, '"""Offsets of a node."""\n'),
        (untidy_space, ""),
        (untidy_space, "a\n\nb\n"),
    ],
)
def test_a_rule_leaves_tidy_text_alone(rule: Callable[[str], Iterator[str]], tidy: str) -> None:
    assert not list(rule(tidy))


def test_links_are_found_in_prose_and_not_in_code() -> None:
    markdown = """
[a](docs/a.md) and ![b](b.png "a title"), [c](c.md#part) [d](#here) [e](https://example.com/x) [f](mailto:x@example.com)
`[g](g.md)` is code, and so is
```
[h](h.md)
```
[i](<i.md>)
[ref]: ../j.md
"""
    assert list(relative_links(markdown)) == ["docs/a.md", "b.png", "c.md", "i.md", "../j.md"]
