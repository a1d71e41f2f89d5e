"""Settings of a process: flag over environment over file over default, and an error for what is unknown.

A process lists its settings once; each has a flag (`-replication-target`, one dash or two), an environment
variable (`TIDELOG_REPLICATION_TARGET`) and a HOCON key (`replication.target`), so command lines and files
written for lplex work as they are. All problems are reported at once, and an unknown name comes with the
nearest known one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import hocon

from tidelog.errors import InvalidConfig
from tidelog.units import US_PER_MS, parse_bytes, parse_duration_us

ENVIRONMENT_PREFIX: Final = "TIDELOG_"
_TRUE: Final = frozenset({"true", "yes", "on", "1", ""})
_FALSE: Final = frozenset({"false", "no", "off", "0"})


def _text(value: str) -> str:
    return value


def _integer(value: str) -> int:
    return int(value)


def _number(value: str) -> float:
    return float(value)


def _switch(value: str) -> bool:
    lowered = value.lower()
    if lowered not in _TRUE | _FALSE:
        raise ValueError(f"{value!r} is neither true nor false")
    return lowered in _TRUE


def _milliseconds(value: str) -> int:
    return parse_duration_us(value) // US_PER_MS


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    parse: Callable[[str], Any]


TEXT: Final = Kind("text", _text)
INTEGER: Final = Kind("a whole number", _integer)
NUMBER: Final = Kind("a number", _number)
SWITCH: Final = Kind("true or false", _switch)
DURATION: Final = Kind("a duration such as 30s", _milliseconds)
SIZE: Final = Kind("a size such as 64MiB", parse_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting. Durations are milliseconds once parsed, sizes bytes."""

    flag: str
    """Without dashes; also its name in the result."""
    key: str
    """Where it stands in a HOCON file."""
    kind: Kind = TEXT
    default: Any = None
    help: str = ""

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.flag.upper().replace("-", "_")


def load_settings(
    settings: Sequence[Setting], *, arguments: Sequence[str], environment: Mapping[str, str], file: Path | None = None
) -> dict[str, Any]:
    """Values by flag name. Raises `InvalidConfig` with everything that is wrong."""
    problems: list[str] = []
    values = {setting.flag: setting.default for setting in settings}
    in_file = _read_file(settings, file, problems) if file is not None else {}
    in_environment = {part.flag: environment[part.variable] for part in settings if part.variable in environment}
    in_flags = _read_flags(settings, arguments, problems)
    _take(settings, in_file, lambda setting: setting.key, values, problems)
    _take(settings, in_environment, lambda setting: setting.variable, values, problems)
    _take(settings, in_flags, lambda setting: f"-{setting.flag}", values, problems)
    if problems:
        raise InvalidConfig(section="settings", problems=problems)
    return values


def _take(
    settings: Sequence[Setting],
    given: Mapping[str, str],
    label: Callable[[Setting], str],
    values: dict[str, Any],
    problems: list[str],
) -> None:
    by_flag = {setting.flag: setting for setting in settings}
    for flag, text in given.items():
        setting = by_flag[flag]
        try:
            values[flag] = setting.kind.parse(text)
        except (ValueError, InvalidConfig):
            problems.append(f"{label(setting)} = {text!r} is not {setting.kind.name}")


def _read_flags(settings: Sequence[Setting], arguments: Sequence[str], problems: list[str]) -> dict[str, str]:
    by_flag = {setting.flag: setting for setting in settings}
    given: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, value = argument.lstrip("-").partition("=")
        if not argument.startswith("-") or name not in by_flag:
            problems.append(f"{argument} is unknown{_nearest(name, by_flag, prefix='-')}")
            continue
        if equals:
            given[name] = value
        elif by_flag[name].kind is SWITCH:
            given[name] = rest.pop(0) if rest and rest[0].lower() in _TRUE | _FALSE else "true"
        elif rest:
            given[name] = rest.pop(0)
        else:
            problems.append(f"-{name} needs a value: {by_flag[name].kind.name}")
    return given


def _read_file(settings: Sequence[Setting], file: Path, problems: list[str]) -> dict[str, str]:
    try:
        tree = hocon.parse_file(str(file)).to_object()
    except OSError as error:
        problems.append(f"{file} cannot be read: {error.strerror}")
        return {}
    except (hocon.ParseError, hocon.ResolveError, hocon.ConfigError) as error:
        problems.append(f"{file} is not HOCON: {error}")
        return {}
    by_key = {setting.key: setting.flag for setting in settings}
    given: dict[str, str] = {}
    for key, value in _leaves(tree, ""):
        if key not in by_key:
            problems.append(f"{key} in {file} is unknown{_nearest(key, by_key)}")
        elif value is not None:
            given[by_key[key]] = str(value).lower() if isinstance(value, bool) else str(value)
    return given


def _leaves(tree: Any, path: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(tree, dict):
        yield path, tree
        return
    for name, value in tree.items():
        yield from _leaves(value, f"{path}.{name}" if path else name)


def _nearest(name: str, known: Iterable[str], *, prefix: str = "") -> str:
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {prefix}{found[0]}?" if found else ""
