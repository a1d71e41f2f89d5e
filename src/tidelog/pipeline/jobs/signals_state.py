"""The decoder's state of a channel between two steps: a file per channel and version of `frames`.

The next step needs the messages that a step's end cuts in two, the address claims, and the times at which the clock was
right. A task writes the state for the version it reaches before anything is committed; the state that counts is the one
of the version that `signals` has consumed. So state and table move together without a transaction of their own: files
of steps that were never committed have a higher version, and are written again.

SS1  The same frames from the same state give the same state.
SS2  A channel's state stays small, however long the channel is.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import uuid
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tidelog.pipeline.tables.parquet_files import sync_path
from tidelog.pipeline.tables.table import partition_folder
from tidelog.pki.files import translated
from tidelog.signals.reassembly import Assembly

FOLDER: Final = "_tidelog"
STRETCHES_MAX: Final = 256
CLAIMS_MAX: Final = 64
LINEAGES_MAX: Final = 256
_NAME: Final = re.compile(r"(\d+)\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalStretch:
    """Consecutive seqs that are decoded, and the placed times of the first and the last."""

    first_seq: int
    last_seq: int
    start_us: int
    end_us: int


@dataclass(slots=True, kw_only=True)
class LineageState:
    """The state of one lineage of a channel."""

    assembly: Assembly = field(default_factory=Assembly)
    """Whether its long messages come whole, as far as it has shown."""
    stretches: list[SignalStretch] = field(default_factory=list)
    """By seq, without overlap."""
    claims: list[tuple[int, dict[int, int]]] = field(default_factory=list)
    """(seq, NAME by source as known there), by seq; one entry for each change."""
    tail: pa.RecordBatch | None = None
    """Frames of messages that may go on at `tail_next_seq`."""
    tail_next_seq: int = 0

    def end_before(self, seq: int) -> int | None:
        """The time of what is decoded last before this seq."""
        place = bisect_left([one.first_seq for one in self.stretches], seq)
        return self.stretches[place - 1].end_us if place else None

    def start_after(self, seq: int) -> int | None:
        """The time of what is decoded first after this seq."""
        place = bisect_right([one.first_seq for one in self.stretches], seq)
        return self.stretches[place].start_us if place < len(self.stretches) else None

    def known_at(self, seq: int) -> dict[int, int]:
        """The address claims before this seq."""
        place = bisect_left([one for one, _ in self.claims], seq)
        return self.claims[place - 1][1] if place else {}

    def add_stretch(self, new: SignalStretch) -> None:
        """Add decoded frames; neighbouring ranges are merged, and only the newest are kept (SS2)."""
        joined: list[SignalStretch] = []
        for one in sorted([*self.stretches, new], key=lambda one: one.first_seq):
            last = joined[-1] if joined else None
            if last is not None and one.first_seq <= last.last_seq + 1:
                ends_later = one.last_seq > last.last_seq
                joined[-1] = SignalStretch(
                    first_seq=last.first_seq,
                    last_seq=max(last.last_seq, one.last_seq),
                    start_us=last.start_us,
                    end_us=one.end_us if ends_later else last.end_us,
                )
            else:
                joined.append(one)
        self.stretches = joined[-STRETCHES_MAX:]

    def add_claims(self, seq: int, known: dict[int, int]) -> None:
        if known != self.known_at(seq + 1):
            kept = [entry for entry in self.claims if entry[0] != seq]
            self.claims = sorted([*kept, (seq, known)], key=lambda entry: entry[0])[-CLAIMS_MAX:]


@dataclass(slots=True, kw_only=True)
class ChannelState:
    """The state of one channel: by lineage, the empty name for frames that have none."""

    lineages: dict[str, LineageState] = field(default_factory=dict)

    def lineage(self, name: str | None) -> LineageState:
        found = self.lineages.pop(name or "", None) or LineageState()
        self.lineages[name or ""] = found  # the one used last comes last
        while len(self.lineages) > LINEAGES_MAX:
            del self.lineages[next(iter(self.lineages))]
        return found


# --- files -----------------------------------------------------------------------------------------


def load_state(table_folder: Path, pipeline: str, channel: str, version: int | None) -> ChannelState:
    """The state after this version of `frames`; a new one where there is none."""
    versions = _versions(_folder(table_folder, pipeline, channel))
    held = [one for one in versions if version is not None and one <= version]
    if not held:
        return ChannelState()
    path = versions[max(held)]
    with translated("read", path):
        return _decoded(json.loads(path.read_text()))


def save_state(
    table_folder: Path, pipeline: str, channel: str, state: ChannelState, *, before: int | None, version: int
) -> None:
    """Write the state for a version that is not committed yet, and remove those before the committed one."""
    folder = _folder(table_folder, pipeline, channel)
    target = folder / f"{version}.json"
    temporary = folder / f".{uuid.uuid4().hex}"
    with translated("write", target):
        folder.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(_encoded(state)))
        sync_path(temporary)
        temporary.replace(target)
        sync_path(folder)
        versions = _versions(folder)
        counting = max((one for one in versions if before is not None and one <= before), default=version)
        for old in sorted(versions):
            if old < counting:
                versions[old].unlink(missing_ok=True)


def forget_states(table_folder: Path, pipeline: str) -> None:
    """Remove the states of all channels, for a pipeline that decodes from the beginning: a state of a higher version
    would be taken for its own later."""
    folder = table_folder / FOLDER / partition_folder((pipeline,))
    with translated("remove", folder):
        if folder.is_dir():
            shutil.rmtree(folder)


def _folder(table_folder: Path, pipeline: str, channel: str) -> Path:
    return table_folder / FOLDER / partition_folder((pipeline, channel))


def _versions(folder: Path) -> dict[int, Path]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    return {int(match[1]): folder / name for name in names if (match := _NAME.fullmatch(name))}


def _encoded(state: ChannelState) -> dict[str, Any]:
    return {
        name: {
            "assembly": [one.assembly.balance, {str(pgn): count for pgn, count in one.assembly.by_pgn.items()}],
            "stretches": [[part.first_seq, part.last_seq, part.start_us, part.end_us] for part in one.stretches],
            "claims": [[seq, {str(source): str(name) for source, name in known.items()}] for seq, known in one.claims],
            "tail": None if one.tail is None else _ipc(one.tail),
            "tail_next_seq": one.tail_next_seq,
        }
        for name, one in state.lineages.items()
    }


def _decoded(plain: dict[str, Any]) -> ChannelState:
    lineages = {}
    for name, one in plain.items():
        lineages[name] = LineageState(
            assembly=_assembly(one),
            stretches=[SignalStretch(first_seq=a, last_seq=b, start_us=c, end_us=d) for a, b, c, d in one["stretches"]],
            claims=[(seq, {int(source): int(name) for source, name in known.items()}) for seq, known in one["claims"]],
            tail=None if one["tail"] is None else _from_ipc(one["tail"]),
            tail_next_seq=one["tail_next_seq"],
        )
    return ChannelState(lineages=lineages)


def _assembly(plain: dict[str, Any]) -> Assembly:
    if "assembly" not in plain:
        # Written before PGNs were counted: a single long payload made a whole lineage an assembled one.
        return Assembly(balance=1 if plain["assembled"] else 0)
    balance, by_pgn = plain["assembly"]
    return Assembly(balance=balance, by_pgn={int(pgn): count for pgn, count in by_pgn.items()})


def _ipc(batch: pa.RecordBatch) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return base64.b64encode(sink.getvalue()).decode()


def _from_ipc(text: str) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(base64.b64decode(text))) as reader:
        return reader.read_next_batch()
