"""Prometheus' text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_NO_LABELS: Final[Mapping[str, str]] = {}


class Metrics:
    """One scrape. Values of one name must be added one after the other, as the format requires."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._name = ""
        self._names: set[str] = set()

    def gauge(self, name: str, help_text: str, value: float, labels: Mapping[str, str] = _NO_LABELS) -> None:
        self._add("gauge", name, help_text, value, labels)

    def counter(self, name: str, help_text: str, value: float, labels: Mapping[str, str] = _NO_LABELS) -> None:
        self._add("counter", name, help_text, value, labels)

    def text(self) -> str:
        return "".join(f"{line}\n" for line in self._lines)

    def _add(self, kind: str, name: str, help_text: str, value: float, labels: Mapping[str, str]) -> None:
        if name != self._name:
            assert name not in self._names, f"the values of {name} are not together"
            self._name = name
            self._names.add(name)
            self._lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
        shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        self._lines.append(f"{name}{{{shown}}} {_number(value)}" if shown else f"{name} {_number(value)}")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
