"""The options of `format("tidelog")`: every option, its default, its check.

Spark passes options as text, in lower case. All problems are reported at once, and an unknown name with the nearest
known one: a misspelt option must not be ignored.

For `CREATE TABLE` Spark adds properties of the table (`provider`, `owner`, `location` and those of the user) and
repeats every option with the prefix `option.`. For a query of that table it passes none of them; so `source` keeps the
options in the schema, which Spark stores and gives back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final

from tidelog.errors import InvalidConfig
from tidelog.pipeline.local_paths import local_path
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.sources.logs import FAIL, SKIP

SECTION: Final = "format('tidelog')"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FOREIGN: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""Options that Spark itself passes on to every source and sink."""
_OF_TABLE: Final = "provider"
"""The property that only the options of a table in a catalog have."""
_REPEATED: Final = "option."

ADDRESS_OPTIONS: Final = ("cluster", "path", "certificate", "key", "authority", "insecure")
READ_OPTIONS: Final = (
    *ADDRESS_OPTIONS,
    "channels",
    "starting",
    "ending",
    "records",
    "pgns",
    "push_filters",
    "descriptors",
    "split_records",
    "on_trimmed",
    "on_damaged",
    "max_records_per_trigger",
    "max_bytes_per_trigger",
)
WRITE_OPTIONS: Final = (*ADDRESS_OPTIONS, "channel", "staging", "transaction", "codec")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPlace:
    """A place in every channel: earliest, latest, a time, or an offset for each channel named."""

    kind: str = EARLIEST
    time_us: int | None = None
    offsets: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of one read. Pickled into planners and tasks."""

    address: LogsAddress
    channels: tuple[str, ...] = ("*",)
    """Names or patterns."""
    starting: StartPlace = StartPlace()
    ending: StartPlace = StartPlace(kind=LATEST)
    records: str = "frames"
    pgns: frozenset[int] | None = None
    """Only frames of these PGNs: the others never leave the task."""
    push_filters: bool = False
    """Let Spark pass its filters to the source. Only for a DataFrame that is used in one query, in one place of it:
    Spark up to 4.3 keeps the result of the last filter, and every later use of the same DataFrame (or view) reads no
    more than that."""
    descriptors: bool = False
    """Give one row per piece of a channel instead of its records: for jobs whose tasks fetch for themselves."""
    split_records: int | None = None
    """Approximate offsets of one task; None: chosen by the amount of data."""
    on_trimmed: str = FAIL
    on_damaged: str = FAIL
    max_records_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool = False) -> SourceOptions:
        reader = OptionReader(options, READ_OPTIONS)
        made = cls(
            address=reader.address(),
            channels=reader.names("channels") or ("*",),
            starting=reader.place("starting", EARLIEST),
            ending=reader.place("ending", LATEST),
            records=reader.choice("records", ("frames", "messages")),
            pgns=reader.numbers("pgns"),
            push_filters=reader.flag("push_filters"),
            descriptors=reader.flag("descriptors"),
            split_records=reader.number("split_records"),
            on_trimmed=reader.choice("on_trimmed", (FAIL, SKIP)),
            on_damaged=reader.choice("on_damaged", (FAIL, SKIP)),
            max_records_per_trigger=reader.number("max_records_per_trigger"),
            max_bytes_per_trigger=reader.number("max_bytes_per_trigger"),
        )
        if made.pgns is not None and (made.descriptors or made.records != "frames"):
            reader.problems.append("pgns are of frames; leave them out for messages and descriptors")
        if streaming and "ending" in options:
            reader.problems.append("a stream has no ending; leave it out, or read a batch")
        if made.max_records_per_trigger and made.max_bytes_per_trigger:
            reader.problems.append("give max_records_per_trigger or max_bytes_per_trigger, not both")
        reader.require_good()
        return made


def own_options(given: Mapping[str, str]) -> dict[str, str]:
    """What was given as options, of all that Spark passes. `path` is also where a table is (`LOCATION`)."""
    if _OF_TABLE not in given:
        return dict(given)
    return {name: value for name, value in given.items() if name == "path" or f"{_REPEATED}{name}" in given}


def is_of_table(options: Mapping[str, str]) -> bool:
    """Whether a table is made in a catalog with these options."""
    return any(name.lower() == _OF_TABLE for name in options)


class OptionReader:
    """Reads options one by one and collects the problems; `require_good` raises them all."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str]) -> None:
        given = {name.lower(): str(value).strip() for name, value in options.items()}
        self._options = own_options(given)
        names = list(known)
        self.problems = [_unknown(name, names) for name in self._options if name not in {*names, *_FOREIGN}]
        self.problems += [
            f"{name} is a property of the table, and no option; write it under OPTIONS"
            for name in given
            if name in names and name not in self._options
        ]

    def require_good(self) -> None:
        if self.problems:
            raise InvalidConfig(section=SECTION, problems=self.problems)

    def text(self, name: str) -> str:
        return self._options.get(name, "")

    def path(self, name: str) -> str:
        """The absolute path; a task runs in another folder than the driver."""
        try:
            return local_path(self.text(name), name=name, section=SECTION)
        except InvalidConfig as error:
            self.problems += error.problems
            return ""

    def names(self, name: str) -> tuple[str, ...]:
        return tuple(part for text in self.text(name).split(",") if (part := text.strip()))

    def flag(self, name: str) -> bool:
        text = self.text(name).lower()
        if text not in ("", "true", "false"):
            self.problems.append(f"{name} is {text!r}; say true or false")
        return text == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        text = self.text(name).lower() or choices[0]
        if text not in choices:
            self.problems.append(f"{name} is {text!r}; choose {' or '.join(choices)}")
        return text

    def number(self, name: str) -> int | None:
        text = self.text(name).replace("_", "")
        if not text:
            return None
        if not text.isdecimal() or not 0 < int(text) < 2**62:
            self.problems.append(f"{name} is {text!r}; give a whole number from 1 on")
            return None
        return int(text)

    def numbers(self, name: str) -> frozenset[int] | None:
        texts = self.names(name)
        wrong = [text for text in texts if not text.isdecimal() or int(text) >= 1 << 18]
        if wrong:
            self.problems.append(f"{name} has {wrong[0]!r}; give numbers below {1 << 18}, with commas between")
            return None
        return frozenset(map(int, texts)) if texts else None

    def address(self) -> LogsAddress:
        """A placeholder for an invalid value, which is among the problems."""
        try:
            return LogsAddress(
                cluster=self.names("cluster"),
                path=self.text("path"),
                certificate=self.text("certificate"),
                key=self.text("key"),
                authority=self.text("authority"),
                insecure=self.flag("insecure"),
            )
        except InvalidConfig as error:
            self.problems += error.problems
            return LogsAddress(path=".")

    def place(self, name: str, default: str) -> StartPlace:
        text = self.text(name)
        if text.lower() in ("", EARLIEST, LATEST):
            return StartPlace(kind=text.lower() or default)
        try:
            loaded = json.loads(text)
        except ValueError:
            loaded = None
        match loaded:
            case {"time": str(moment)} if len(loaded) == 1:
                return StartPlace(kind="time", time_us=self._time_us(name, moment))
            case dict() if loaded and all(type(one) is int and one >= 0 for one in loaded.values()):
                return StartPlace(kind="offsets", offsets=loaded)
        self.problems.append(
            f'{name} is {text!r}; say earliest, latest, {{"channel": offset}} or {{"time": "2026-07-01T00:00:00Z"}}'
        )
        return StartPlace()

    def _time_us(self, name: str, text: str) -> int | None:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.problems.append(f"{name} has the time {text!r}; write it as 2026-07-01T00:00:00Z")
            return None
        return micros(moment)


def micros(moment: Any) -> int:
    """Microseconds since 1970; a time without a zone is UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int((aware - _EPOCH) / timedelta(microseconds=1))


def _unknown(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.5) or get_close_matches(name.replace("_", ""), known, n=1)
    if near:
        return f"option {name!r} is not known; did you mean {near[0]!r}?"
    return f"option {name!r} is not known; there are {', '.join(known)}"
