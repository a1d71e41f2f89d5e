"""The settings as `-help` prints them and as the tables of docs/configuration.md, both from the same lists.

Refresh the page after changing a setting: `python -m tidelog.cli.settings.page`.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tidelog.cli.disk_trouble import EXIT_CODES
from tidelog.cli.settings.boat import BOAT_SETTINGS
from tidelog.cli.settings.cloud import CLOUD_SETTINGS
from tidelog.cli.settings.node import NODE_SETTINGS
from tidelog.config import DURATION, LISTEN, SIZE, SWITCH, TARGET, Setting
from tidelog.units import KIB, MIB

PAGE: Final = Path("docs/configuration.md")
_BEGIN: Final = "<!-- settings of the {name}, written by tidelog.cli.settings.page -->\n"
_END: Final = "<!-- end of the settings of the {name} -->\n"
_LPLEX: Final = "lplex"


def render_help(name: str, settings: Sequence[Setting], files: Sequence[str]) -> str:
    """What `-help` prints."""
    lines = [f"Usage: tidelog {name} [-setting value] ...", ""]
    for group, members in _grouped(settings):
        lines.append(f"{group}:")
        for setting in members:
            default = _default(setting)
            lines.append(f"  -{setting.flag:<40} {setting.help}{f' ({default})' if default else ''}")
        lines.append("")
    taken = ", ".join(f"-{setting.flag}" for setting in settings if setting.group == _LPLEX and not setting.file_only)
    if taken:
        lines += textwrap.wrap(
            f"Accepted for lplex, without effect or refused in words: {taken}.", 110, break_on_hyphens=False
        )
        lines.append("")
    flags = [setting for setting in settings if not setting.file_only]
    example = next((setting for setting in flags if setting.kind in (TARGET, LISTEN)), flags[-1])
    lines += [
        "Durations: 30s, 1h30m, 7d, PT1H30M. Sizes: 4096, 64MiB, 1.5GB. One dash or two.",
        *textwrap.wrap(
            f"Each is also an environment variable ({example.variable} for -{example.flag}) and a key of "
            f"the file that -config names; without it the first of {', '.join(files)} is read. A flag wins over the "
            "environment, the environment over the file. All keys: docs/configuration.md.",
            110,
            break_on_hyphens=False,
        ),
        "",
        "Exit codes:",
        *(f"  {code:<4} {meaning} ({what})" for code, meaning, what in EXIT_CODES),
    ]
    return "\n".join(lines)


def render_page(text: str) -> str:
    """The page with its tables written anew; the prose around them stays."""
    # Imported here: it brings pyarrow along, which a boat that only prints its help should not pay for.
    from tidelog.pipeline.settings import PIPELINE_SETTINGS

    for name, settings in (
        ("boat", BOAT_SETTINGS),
        ("cloud", CLOUD_SETTINGS),
        ("node", NODE_SETTINGS),
        ("pipeline", PIPELINE_SETTINGS),
    ):
        begin, end = _BEGIN.format(name=name), _END.format(name=name)
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        assert found, f"{PAGE} has lost its marks for the {name}"
        text = f"{before}{begin}\n{''.join(_tables(settings))}{end}{after}"
    return text


def _tables(settings: Sequence[Setting]) -> Iterator[str]:
    for group, members in _grouped(settings):
        yield f"### {group}\n\n| flag | key in a file | default | what it does |\n|---|---|---|---|\n"
        for setting in members:
            yield f"| {_flag(setting)} | {_keys(setting)} | {_default_cell(setting)} | {setting.help} |\n"
        yield "\n"
    others = [setting for setting in settings if setting.group == _LPLEX]
    if not others:
        return
    yield "### Accepted without effect\n\n| flag | key in a file | why |\n|---|---|---|\n"
    for setting in others:
        if setting.no_effect:
            said = "" if setting.unless is None else f" (nothing is said for `{_shown(setting.unless)}`)"
            yield f"| {_flag(setting)} | {_keys(setting)} | {setting.no_effect}{said} |\n"
    yield "\n### Refused\n\n| flag | key in a file | accepted | what to do instead |\n|---|---|---|---|\n"
    for setting in others:
        if setting.refused:
            accepted = f"`{_shown(setting.default)}`" if setting.default is not None else "empty"
            yield f"| {_flag(setting)} | {_keys(setting)} | {accepted} | {setting.refused} |\n"
    yield "\n"


def _grouped(settings: Sequence[Setting]) -> Iterator[tuple[str, list[Setting]]]:
    groups: dict[str, list[Setting]] = {}
    for setting in settings:
        if setting.group != _LPLEX:
            groups.setdefault(setting.group, []).append(setting)
    yield from groups.items()


def _flag(setting: Setting) -> str:
    return "file only" if setting.file_only else f"`-{setting.flag}`"


def _keys(setting: Setting) -> str:
    return ", ".join(f"`{key}`" for key in setting.keys)


def _default_cell(setting: Setting) -> str:
    return f"`{_shown(setting.default, setting)}`" if setting.default not in (None, ()) else ""


def _default(setting: Setting) -> str:
    return "" if setting.default in (None, (), False) else f"default {_shown(setting.default, setting)}"


def _shown(value: Any, setting: Setting | None = None) -> str:
    """A value as one would write it."""
    if isinstance(value, tuple):
        return ",".join(value)
    kind = None if setting is None else setting.kind
    if kind is DURATION:
        for unit, size_ms in (("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
            if value % size_ms == 0:
                return f"{value // size_ms}{unit}"
        return f"{value}ms"
    if kind is SIZE:
        return f"{value // MIB}MiB" if value % MIB == 0 else f"{value // KIB}KiB"
    if kind is SWITCH or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def main() -> None:
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    page.write_text(render_page(page.read_text()))


if __name__ == "__main__":
    main()
