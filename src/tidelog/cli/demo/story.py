"""What the demo tells: its numbers, what was seen, and what did not hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console

from tidelog.cli.demo.parties import BOATS, Parties
from tidelog.cli.demo.sight import Watch

STEP_S_MAX: Final = 90.0
"""The longest any single step may wait for something."""
LINES_MAX: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSizes:
    """How much of everything there is. The story is the same with less."""

    frames_per_s: int = 600
    """The frames a second of the first boat; the other one is half as busy."""
    live_s: float = 5.0
    link_down_s: float = 1.8
    """Each time; then the boat's back-off decides when it dials again."""
    last_leg_s: int = 5
    backfill_bytes_per_s: int = 6_000
    """As on a metered link: at full speed such holes are gone before anybody could look."""


QUICK: Final = DemoSizes(live_s=1.0, link_down_s=1.0, last_leg_s=2, backfill_bytes_per_s=12_000)


@dataclass(slots=True)
class Story:
    """What happened; the demo succeeds when `failures` is empty."""

    seed: int
    live_behind_median: float = 0.0
    live_behind_max: int = 0
    hole_seqs: int = 0
    missing_by_turn: list[int] = field(default_factory=list)
    durable_at_boat_kill: int = 0
    saved_by_live: int = 0
    seqs_void: int = 0
    node_killed: str = ""
    node_after: str = ""
    """Leads the first boat's channel after the kill."""
    cursor_before_node_kill: int = 0
    cursor_after_node_kill: int = 0
    ack_gap_s: float = 0.0
    """From the kill of the leader to the next ack that the boat got."""
    isr_full_s: float = 0.0
    """From the killed node's new start until every replica was in sync again."""
    journal_frames: dict[str, int] = field(default_factory=dict)
    log_frames: int = 0
    table_frames: int = 0
    signals: int = 0
    gold_rows: dict[str, int] = field(default_factory=dict)
    audit_equal: bool = False
    audit_differences: list[str] = field(default_factory=list)
    journal_bytes: int = 0
    log_bytes: int = 0
    table_bytes: int = 0
    max_wind: list[dict[str, Any]] = field(default_factory=list)
    """The answer of the SQL: channel, hour, metres a second."""
    positions: dict[str, str] = field(default_factory=dict)
    report: str = ""
    seconds: float = 0.0
    seconds_by_step: dict[str, float] = field(default_factory=dict)
    folder: str = ""
    """Where everything lies, if it was kept."""
    failures: list[str] = field(default_factory=list)

    def check(self, held: bool, what: str) -> None:
        if not held:
            self.failures.append(what)


@dataclass(slots=True)
class Stage:
    """Everything that the steps of the story share."""

    story: Story
    parties: Parties
    console: Console
    sizes: DemoSizes
    last_leg_us: dict[str, int] = field(default_factory=dict)
    """When the last leg of each voyage began."""
    watches: dict[str, Watch] = field(init=False)

    def __post_init__(self) -> None:
        self.watches = {boat: Watch(self.parties, boat) for boat in self.parties.boats}

    @property
    def first(self) -> Watch:
        """The watch of the boat that the story follows closely."""
        return self.watches[BOATS[0]]

    @property
    def others(self) -> list[Watch]:
        return [watch for watch in self.watches.values() if watch is not self.first]

    def frames_per_s(self, boat: str) -> int:
        return self.sizes.frames_per_s if boat == BOATS[0] else self.sizes.frames_per_s // 2

    def seed(self, boat: str) -> int:
        return self.story.seed + self.parties.boats.index(boat)

    def tell(self, *lines: str) -> None:
        for line in lines:
            self.console.print(f"  {line}")


def seqs_in_words(part: range) -> str:
    return f"{part.start:,} to {part.stop - 1:,}"


def some(lines: Sequence[str]) -> list[str]:
    """At most a few, evenly chosen, the first and the last among them."""
    if len(lines) <= LINES_MAX:
        return list(lines)
    step = (len(lines) - 1) / (LINES_MAX - 1)
    return [lines[round(number * step)] for number in range(LINES_MAX)]
