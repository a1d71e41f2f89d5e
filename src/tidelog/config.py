"""Settings of a process: flag over environment over file over default, and an error for what is unknown.

A process lists its settings once; each has a flag (`-replication-target`, one dash or two), an environment
variable (`TIDELOG_REPLICATION_TARGET`) and a HOCON key (`replication.target`), so command lines and files
written for lplex work as they are. All problems are reported at once, and an unknown name comes with the
nearest known one.

What a caller must keep: `load_settings` raises nothing. Look at `problems` before using `values`, and add
what is wrong with values taken together.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import hocon

from tidelog.errors import InvalidConfig
from tidelog.units import US_PER_MS, parse_bytes, parse_duration_us

ENVIRONMENT_PREFIX: Final = "TIDELOG_"
PORT_MAX: Final = 65_535
_TRUE: Final = frozenset({"true", "yes", "on", "1", "t"})
_FALSE: Final = frozenset({"false", "no", "off", "0", "f"})
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")
_MISSPELT: Final = 0.85
"""How like a known variable an unknown one must be to count as a slip: other programs may use the prefix too."""


class _Unusable(ValueError):
    """What is wrong with a value, worded to follow `name = 'value'`."""


@dataclass(frozen=True, slots=True)
class ValueKind:
    """How a value is written, and the function that reads it or raises `ValueError`."""

    name: str
    parse: Callable[[str], Any]


def _switch(value: str) -> bool:
    lowered = value.lower()
    if lowered not in _TRUE | _FALSE:
        raise ValueError
    return lowered in _TRUE


def _milliseconds(value: str) -> int:
    return parse_duration_us(value) // US_PER_MS


def _names(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _port(value: str) -> int | None:
    if value.lower() in ("", "off"):
        return None
    number = int(value) if value.isdecimal() and len(value) <= 6 else -1
    if not 0 <= number <= PORT_MAX:
        raise _Unusable(f"is not a port; choose 1 to {PORT_MAX}, 0 for any free one, or off")
    return number


def split_address(value: str) -> tuple[str, int]:
    """`host:port`, `:port` (all interfaces) or `[::1]:port` in two. Raises `ValueError` with words."""
    host, colon, port = value.rpartition(":")
    if not colon or "]" in port:
        raise _Unusable(f"has no port; write it like {value}:9443")
    if not port.isdecimal() or len(port) > 6 or int(port) > PORT_MAX:
        raise _Unusable(f"has no port from 0 to {PORT_MAX} after its last colon")
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1])), int(port)
        except ValueError:
            raise _Unusable("has no IPv6 address between its brackets") from None
    if ":" in host:
        raise _Unusable(f"has too many colons; write an IPv6 address like [::1]:{port}")
    if host and not _HOST.fullmatch(host):
        raise _Unusable("has no host name before its colon; leave out any scheme such as https://")
    return host, int(port)


def _listen(value: str) -> str | None:
    if value.lower() in ("", "off"):
        return None
    split_address(value)
    return value


def _target(value: str) -> str:
    host, port = split_address(value)
    if not host or not port:
        raise _Unusable("must name a host and a port that is not 0, like cloud.example.com:9443")
    return value


TEXT: Final = ValueKind("text", str)
ANYTHING: Final = ValueKind("anything", str)
"""For settings that are accepted and not used: lists and tables of a file too."""
INTEGER: Final = ValueKind("a whole number", int)
NUMBER: Final = ValueKind("a number", float)
SWITCH: Final = ValueKind("true or false", _switch)
DURATION: Final = ValueKind("a duration such as 30s, 1h30m or PT1H30M", _milliseconds)
SIZE: Final = ValueKind("a size such as 64MiB", parse_bytes)
NAMES: Final = ValueKind("a list separated by commas", _names)
PORT: Final = ValueKind("a port", _port)
LISTEN: Final = ValueKind("an address to listen on, such as :8080", _listen)
TARGET: Final = ValueKind("host:port", _target)
FILE: Final = ValueKind("a file", str)
FOLDER: Final = ValueKind("a folder", str)


def one_of(*choices: str) -> ValueKind:
    """A kind with a few values, each a word."""

    def parse(value: str) -> str:
        if value not in choices:
            raise ValueError
        return value

    return ValueKind("one of " + ", ".join(choices), parse)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: everything that is said about it, in one place. Durations are milliseconds once parsed, sizes
    bytes, lists tuples."""

    key: str
    """Where it stands in a HOCON file; empty for what only a command line may say."""
    help: str = ""
    kind: ValueKind = TEXT
    default: Any = None
    _: KW_ONLY
    flag: str = ""
    """Without dashes; also its name in the result. The key with dashes for dots, unless another one is given."""
    aliases: tuple[str, ...] = ()
    """Further keys that mean the same."""
    group: str = ""
    """The heading under which help lists it."""
    at_least: float | None = None
    at_most: float | None = None
    zero_is_off: bool = False
    """0 becomes None, whatever `at_least` says."""
    zero_is_default: bool = False
    """0 means the default, as lplex takes it."""
    file_only: bool = False
    """It has no flag and no variable."""
    no_effect: str = ""
    """Why it does nothing here. Saying so is the caller's part; see `Loaded.without_effect`."""
    unless: Any = None
    """With `no_effect`: the value that is how things are anyway, so that nothing need be said."""
    refused: str = ""
    """What to do instead, where any value but the default is refused."""

    def __post_init__(self) -> None:
        if not self.flag:
            object.__setattr__(self, "flag", self.key.replace(".", "-"))

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.flag.upper().replace("-", "_")

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *self.aliases) if self.key else ()


def under(group: str, *settings: Setting, section: str = "") -> tuple[Setting, ...]:
    """Settings under one heading of the help. With `section` their keys are in that section of the file."""
    prefix = f"{section}." if section else ""
    return tuple(replace(setting, group=group, key=prefix + setting.key) for setting in settings)


@dataclass(slots=True, kw_only=True)
class Loaded:
    """What was read: every value by flag name, who gave it, and everything that is wrong."""

    values: dict[str, Any]
    given: dict[str, str] = field(default_factory=dict)
    """Which flag, variable or key gave a value, for those that are not defaults."""
    problems: list[str] = field(default_factory=list)
    without_effect: list[tuple[str, str]] = field(default_factory=list)
    """What was given and does nothing: name and reason."""

    def named(self, flag: str) -> str:
        """A setting as the operator wrote it, for messages."""
        return self.given.get(flag, f"-{flag}")

    def raise_problems(self) -> None:
        if self.problems:
            raise InvalidConfig(section="settings", problems=self.problems)


def load_settings(
    settings: Sequence[Setting],
    *,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    file: Path | None = None,
    other_variables: Iterable[str] = (),
) -> Loaded:
    """Read flags, environment and file. `other_variables` are known to other commands and no slips."""
    loaded = Loaded(values={setting.flag: setting.default for setting in settings})
    by_flag = {setting.flag: setting for setting in settings}
    takes_flag = [setting for setting in settings if not setting.file_only]
    if file is not None:
        for key, setting, text in _read_file(settings, file, loaded.problems):
            _take(setting, text, f"{key} in {file}", loaded)
    for setting in takes_flag:
        # Set but empty is how compose files and unit files write "not set".
        if environment.get(setting.variable):
            _take(setting, environment[setting.variable], setting.variable, loaded)
    _check_variables(takes_flag, environment, other_variables, loaded.problems)
    for flag, text in read_flags(settings, arguments, loaded.problems).items():
        _take(by_flag[flag], text, f"-{flag}", loaded)
    for setting in settings:
        _judge(setting, loaded)
    return loaded


def _take(setting: Setting, text: str, label: str, loaded: Loaded) -> None:
    """Parse one value that was given; the last one given wins."""
    try:
        value = None if text == "" and setting.default is None else setting.kind.parse(text)
        if isinstance(value, int | float) and setting.kind is not SWITCH:
            value = _bounded(setting, value)
    except _Unusable as error:
        loaded.problems.append(f"{label} = {text!r} {error}")
    except (ValueError, InvalidConfig):
        loaded.problems.append(f"{label} = {text!r} is not {setting.kind.name}")
    else:
        loaded.values[setting.flag] = value
        loaded.given[setting.flag] = label


def _bounded(setting: Setting, value: float) -> float | None:
    if setting.zero_is_off and value == 0:
        return None
    if setting.zero_is_default and value == 0:
        return float(setting.default) if setting.kind is NUMBER else int(setting.default)
    if value != value:
        raise ValueError
    if setting.at_least is not None and value < setting.at_least:
        off = ", or 0 for no limit" if setting.zero_is_off else ""
        raise _Unusable(f"is too low; the least is {setting.at_least:.10g}{off}")
    if setting.at_most is not None and value > setting.at_most:
        raise _Unusable(f"is too high; the most is {setting.at_most:.10g}")
    return value


def _judge(setting: Setting, loaded: Loaded) -> None:
    """Settings that Tidelog accepts without using them, and those it must not accept."""
    if setting.flag not in loaded.given:
        return
    value = loaded.values[setting.flag]
    label = loaded.given[setting.flag]
    if setting.refused and value not in (setting.default, None, "", False):
        loaded.problems.append(f"{label} is not supported: {setting.refused}")
    elif setting.no_effect and value not in (setting.unless, None, ""):
        loaded.without_effect.append((label, setting.no_effect))


def read_flags(settings: Sequence[Setting], arguments: Sequence[str], problems: list[str]) -> dict[str, str]:
    """The text of every flag that was given, as Go's flag package reads a command line."""
    by_flag = {setting.flag: setting for setting in settings if not setting.file_only}
    given: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, value = argument.lstrip("-").partition("=")
        if not argument.startswith("-") or name not in by_flag:
            problems.append(f"{argument} is unknown{_nearest(name, by_flag, prefix='-')}")
            if argument.startswith("-") and not equals and rest and not rest[0].startswith("-"):
                rest.pop(0)  # its value: one slip, one complaint
        elif equals:
            given[name] = value
        elif by_flag[name].kind is SWITCH:
            given[name] = rest.pop(0) if rest and rest[0].lower() in _TRUE | _FALSE else "true"
        elif rest and not _is_flag(rest[0], by_flag):
            given[name] = rest.pop(0)
        else:
            problems.append(f"-{name} needs a value: {by_flag[name].kind.name}")
    return given


def _is_flag(argument: str, by_flag: Mapping[str, Setting]) -> bool:
    return argument.startswith("-") and argument.lstrip("-").partition("=")[0] in by_flag


def _check_variables(
    settings: Sequence[Setting], environment: Mapping[str, str], others: Iterable[str], problems: list[str]
) -> None:
    known = [setting.variable for setting in settings]
    for name in sorted(set(environment) - set(known) - set(others)):
        if name.startswith(ENVIRONMENT_PREFIX):
            near = difflib.get_close_matches(name, known, n=1, cutoff=_MISSPELT)
            if near:
                problems.append(f"the environment variable {name} is unknown; did you mean {near[0]}?")


def _read_file(settings: Sequence[Setting], file: Path, problems: list[str]) -> list[tuple[str, Setting, str]]:
    """Key, setting and text of everything in the file that is not empty."""
    try:
        tree = hocon.parse_file(str(file)).to_object()
    except OSError as error:
        problems.append(f"{file} cannot be read: {error.strerror}; check -config")
        return []
    except (hocon.ParseError, hocon.ResolveError, hocon.ConfigError, UnicodeDecodeError) as error:
        problems.append(f"{file} is not HOCON: {error}")
        return []
    by_key = {key: setting for setting in settings for key in setting.keys}
    given: dict[str, tuple[str, Setting, str]] = {}
    for key, value in _leaves(tree, ""):
        setting = by_key.get(key)
        if setting is None:
            problems.append(f"{key} in {file} is unknown{_nearest(key, by_key)}")
            continue
        text = _text_of(value, setting)
        if text is None:
            problems.append(f"{key} in {file} is a list; it must be {setting.kind.name}")
        elif text and setting.flag in given:
            problems.append(f"{given[setting.flag][0]} and {key} in {file} are the same setting; keep one of them")
        elif text:
            given[setting.flag] = (key, setting, text)
    return list(given.values())


def _text_of(value: Any, setting: Setting) -> str | None:
    """A value of a file as one would write it for a flag; empty if it is; None for a list that cannot be one."""
    if value is None:
        return ""
    if isinstance(value, list):
        if setting.kind is not ANYTHING and (
            setting.kind is not NAMES or any(isinstance(x, list | dict) for x in value)
        ):
            return None
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _leaves(tree: Any, path: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(tree, dict):
        yield path, tree
        return
    for name, value in tree.items():
        yield from _leaves(value, f"{path}.{name}" if path else name)


def _nearest(name: str, known: Iterable[str], *, prefix: str = "") -> str:
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {prefix}{found[0]}?" if found else ""
