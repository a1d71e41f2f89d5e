"""`tidelog log dump`: records as JSON lines, with the keys of lplex's dump, or as a table.

Damage does not stop it: what can be read is printed, what cannot is named on stderr, and the exit code
is 1.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import Any

from tidelog.blocks.block import Block
from tidelog.blocks.control import decode_control
from tidelog.blocks.decode import counted_frames
from tidelog.blocks.header import BlockKind
from tidelog.blocks.messages import Message, decode_messages
from tidelog.cli.log.sources import BrokenBytes, LogSource, open_source
from tidelog.cli.output import warn
from tidelog.compat.captures import parts_from_can_id
from tidelog.errors import BadBlock, BlockCorrupt
from tidelog.units import format_time_us, parse_time_us

_PAYLOAD_SHOWN_BYTES = 32
_LINEAGE_SHOWN_DIGITS = 8
_HEADING = f"{'offset':>10} {'lineage':<8} {'seq':>10} {'time':<27} {'prio':>4} {'pgn':>6} {'src':>3} {'dst':>3}  data"


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpBounds:
    """Half-open bounds by offset and by time, each optional."""

    from_offset: int = 0
    to_offset: int | None = None
    from_time_us: int | None = None
    to_time_us: int | None = None

    @classmethod
    def parse(cls, start: str | None, end: str | None) -> DumpBounds:
        """A plain integer is an offset, anything else a time."""
        return cls(
            from_offset=int(start) if start and start.isdecimal() else 0,
            to_offset=int(end) if end and end.isdecimal() else None,
            from_time_us=parse_time_us(start) if start and not start.isdecimal() else None,
            to_time_us=parse_time_us(end) if end and not end.isdecimal() else None,
        )

    def may_touch(self, block: Block) -> bool:
        maker = block.maker
        if block.offsets.stop <= self.from_offset:
            return False
        if self.from_time_us is not None and maker.time_max_us < self.from_time_us:
            return False
        return self.to_time_us is None or maker.time_min_us < self.to_time_us

    def is_past(self, block: Block) -> bool:
        return self.to_offset is not None and block.leader.base_offset >= self.to_offset

    def hold(self, offset: int, time_us: int) -> bool:
        if offset < self.from_offset or (self.to_offset is not None and offset >= self.to_offset):
            return False
        if self.from_time_us is not None and time_us < self.from_time_us:
            return False
        return self.to_time_us is None or time_us < self.to_time_us


Row = dict[str, Any]


def run_dump(
    path: str, *, channel: str | None, start: str | None, end: str | None, limit: int | None, as_json: bool
) -> int:
    source = open_source(path, channel=channel)
    rows = _Rows(source, DumpBounds.parse(start, end))
    chosen = islice(rows, limit)
    for line in _json_lines(chosen) if as_json or not sys.stdout.isatty() else _table_lines(chosen):
        sys.stdout.write(line)
    return 1 if rows.damaged else 0


class _Rows:
    """The rows of a source, in offset order, channel by channel."""

    def __init__(self, source: LogSource, bounds: DumpBounds) -> None:
        self.damaged = False
        self._source = source
        self._bounds = bounds

    def __iter__(self) -> Iterator[Row]:
        for stream in self._source.streams:
            named = {"channel": stream.name} if stream.name is not None else {}
            for item in stream.items(self._bounds.from_offset):
                if isinstance(item, BrokenBytes):
                    self._note(str(item))
                elif self._bounds.is_past(item.block):
                    break
                elif self._bounds.may_touch(item.block):
                    for row in self._block_rows(item.block, f"{item.file} at byte {item.position}"):
                        yield {**named, **row} if named else row

    def _block_rows(self, block: Block, place: str) -> Iterator[Row]:
        try:
            yield from block_rows(block, self._bounds)
        except BadBlock as error:
            self._note(f"{place}: {error.problem}")

    def _note(self, problem: str) -> None:
        self.damaged = True
        sys.stdout.flush()
        warn(problem)


def block_rows(block: Block, bounds: DumpBounds) -> Iterator[Row]:
    """The records of a block that count and lie inside the bounds. Raises `BadBlock`."""
    kind = block.maker.kind
    if kind in (BlockKind.FRAMES, BlockKind.FOREIGN):
        return _frame_rows(block, bounds)
    if kind == BlockKind.MESSAGES:
        return _message_rows(block, bounds)
    if kind == BlockKind.CONTROL:
        return _control_rows(block, bounds)
    offsets = block.offsets
    raise BlockCorrupt(problem=f"offsets [{offsets.start}, {offsets.stop}) are a placeholder: their bytes were damaged")


def _seqs(block: Block) -> Iterable[int | None]:
    seqs = block.counted_seqs()
    return chain.from_iterable(seqs) if seqs else (None for _ in range(block.counted))


def _frame_rows(block: Block, bounds: DumpBounds) -> Iterator[Row]:
    frames = counted_frames(block)
    lineage = bytes(block.maker.producer).hex() if any(block.maker.producer) else None
    parts = parts_from_can_id(frames.can_ids)
    split = zip(*(column.tolist() for column in parts), strict=True)
    for offset, seq, row, (priority, pgn, source, destination) in zip(
        block.offsets, _seqs(block), frames.rows(), split, strict=True
    ):
        time_us, _, payload = row
        if bounds.hold(offset, time_us):
            yield {
                "offset": offset,
                "seq": seq,
                "ts": format_time_us(time_us),
                "prio": priority,
                "pgn": pgn,
                "src": source,
                "dst": destination,
                "data": payload.hex(),
                "lineage": lineage,
            }


def _message_rows(block: Block, bounds: DumpBounds) -> Iterator[Row]:
    messages = list(decode_messages(block.maker, block.raw_body()).rows())
    counted = chain.from_iterable(messages[part.start : part.stop] for part in block.counted_ranges())
    for offset, seq, message in zip(block.offsets, _seqs(block), counted, strict=True):
        if bounds.hold(offset, message.time_us):
            yield {"offset": offset, "seq": seq, "ts": format_time_us(message.time_us), **_message_fields(message)}


def _message_fields(message: Message) -> Row:
    headers = [{"name": name, **_text("value", value)} for name, value in message.headers]
    return {**_text("key", message.key), **_text("value", message.value), "headers": headers}


def _text(name: str, value: bytes | None) -> Row:
    """Under its own name as text, or under `<name>_base64` where it is not UTF-8."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _control_rows(block: Block, bounds: DumpBounds) -> Iterator[Row]:
    time_us = block.maker.time_min_us
    for offset, record in zip(block.offsets, decode_control(block.maker, block.raw_body()), strict=True):
        if bounds.hold(offset, time_us):
            yield {
                "offset": offset,
                "ts": format_time_us(time_us),
                "control": record.type_name,
                "record": asdict(record),
            }


# --- lines ---------------------------------------------------------------------------------------


def _json_lines(rows: Iterable[Row]) -> Iterator[str]:
    encode = json.JSONEncoder(ensure_ascii=False).encode
    for row in rows:
        yield encode(row) + "\n"


def _table_lines(rows: Iterable[Row]) -> Iterator[str]:
    """Fixed columns, so that the first row shows before the last one is known."""
    yield _HEADING + "\n"
    for row in rows:
        channel = f"  [{row['channel']}]" if "channel" in row else ""
        seq = "" if row.get("seq") is None else row["seq"]
        lineage = (row.get("lineage") or "")[:_LINEAGE_SHOWN_DIGITS]
        yield f"{row['offset']:>10} {lineage:<8} {seq:>10} {row['ts']:<27} {_shown(row)}{channel}\n"


def _shown(row: Row) -> str:
    if "pgn" in row:
        data = row["data"]
        cut = data if len(data) <= 2 * _PAYLOAD_SHOWN_BYTES else f"{data[: 2 * _PAYLOAD_SHOWN_BYTES]}..."
        return f"{row['prio']:>4} {row['pgn']:>6} {row['src']:>3} {row['dst']:>3}  {cut}"
    rest = {name: row[name] for name in row if name not in ("offset", "seq", "ts", "channel")}
    return json.dumps(rest, ensure_ascii=False)
