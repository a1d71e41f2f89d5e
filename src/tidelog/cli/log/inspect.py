"""`tidelog log inspect`: every block of a log and what they add up to."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from tidelog.blocks.foreign import ForeignForm
from tidelog.blocks.frames import FrameForm
from tidelog.blocks.header import NO_PRODUCER, BlockKind, Maker
from tidelog.blocks.header import Path as BlockPath
from tidelog.cli.log.files import BlockInFile, LogFiles, SegmentFile
from tidelog.cli.log.sources import JournalStream, LogSource, LpjStream, Stream, open_source
from tidelog.cli.output import print_facts, print_json, print_table, progress
from tidelog.units import format_bytes, format_time_us

TABLE_BLOCKS_MAX = 100
_COLUMNS = ["offset", "epoch", "seq", "time", "records", "bytes", "ratio", "kind", "form", "path", "windows"]
_LEFT = frozenset({"time", "kind", "form", "path", "windows"})

Facts = dict[str, Any]


@dataclass(slots=True)
class _Lineage:
    records: int = 0
    first_seq: int = 0
    last_seq: int = 0


@dataclass(slots=True)
class _Totals:
    """What the blocks of one stream add up to."""

    blocks: int = 0
    records: int = 0
    stored_bytes: int = 0
    raw_bytes: int = 0
    log_start: int | None = None
    log_end: int = 0
    time_min_us: int | None = None
    time_max_us: int = 0
    kinds: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    lineages: dict[bytes, _Lineage] = field(default_factory=lambda: defaultdict(_Lineage))
    broken: list[str] = field(default_factory=list)

    def add(self, placed: BlockInFile) -> None:
        block, maker = placed.block, placed.block.maker
        self.blocks += 1
        self.records += block.counted
        self.stored_bytes += maker.stored_bytes
        self.raw_bytes += maker.raw_bytes
        self.kinds[BlockKind(maker.kind).name.lower()] += 1
        self.log_start = block.offsets.start if self.log_start is None else self.log_start
        self.log_end = block.offsets.stop
        if maker.kind != BlockKind.MISSING:
            known = self.time_min_us
            self.time_max_us = maker.time_max_us if known is None else max(self.time_max_us, maker.time_max_us)
            self.time_min_us = maker.time_min_us if known is None else min(known, maker.time_min_us)
        for seqs in block.counted_seqs():
            lineage = self.lineages[maker.producer]
            lineage.records += len(seqs)
            lineage.first_seq = min(lineage.first_seq or seqs.start, seqs.start)
            lineage.last_seq = max(lineage.last_seq, seqs.stop - 1)

    def to_json(self) -> Facts:
        known = self.time_min_us is not None
        return {
            "blocks": self.blocks,
            "records": self.records,
            "stored_bytes": self.stored_bytes,
            "raw_bytes": self.raw_bytes,
            "ratio": _ratio(self.stored_bytes, self.raw_bytes),
            "log_start": self.log_start,
            "log_end": self.log_end if self.blocks else None,
            "time_min": format_time_us(self.time_min_us) if self.time_min_us is not None else None,
            "time_max": format_time_us(self.time_max_us) if known else None,
            "kinds": dict(self.kinds),
            "lineages": [
                {
                    "lineage": None if producer == NO_PRODUCER else producer.hex(),
                    "first_seq": lineage.first_seq,
                    "last_seq": lineage.last_seq,
                    "records": lineage.records,
                }
                for producer, lineage in self.lineages.items()
            ],
            "damaged_places": self.broken,
        }


def run_inspect(path: str, *, channel: str | None, as_json: bool, limit: int | None) -> None:
    source = open_source(path, channel=channel)
    rows_max = limit if limit is not None else (0 if as_json else TABLE_BLOCKS_MAX)
    with progress("reading", source.total_bytes) as advance:
        streams = [_inspect(stream, rows_max, advance) for stream in source.streams]
    if as_json:
        print_json({"path": path, "kind": source.kind, **_store_facts(source), "streams": streams})
        return
    print_facts({"path": path, "kind": source.kind, **_store_facts(source)})
    for stream in streams:
        _print_stream(stream)


def _inspect(stream: Stream, rows_max: int, advance: Any) -> Facts:
    totals = _Totals()
    rows: list[Facts] = []
    for item in stream.items():
        if isinstance(item, BlockInFile):
            totals.add(item)
            advance(item.block.size)
            if not rows_max or len(rows) < rows_max:
                rows.append(block_facts(item))
        else:
            totals.broken.append(str(item))
    facts = {"channel": stream.name, **totals.to_json(), **_stream_facts(stream)}
    return {**facts, "logs": [_log_facts(log) for log in stream.logs()], "block_list": rows}


def block_facts(placed: BlockInFile) -> Facts:
    block, maker, leader = placed.block, placed.block.maker, placed.block.leader
    seqs = block.counted_seqs()
    return {
        "offset": block.offsets.start,
        "end_offset": block.offsets.stop,
        "epoch": leader.leader_epoch,
        "first_seq": seqs[0].start if seqs else None,
        "last_seq": seqs[-1].stop - 1 if seqs else None,
        "lineage": None if maker.producer == NO_PRODUCER else bytes(maker.producer).hex(),
        "time_min": format_time_us(maker.time_min_us),
        "time_max": format_time_us(maker.time_max_us),
        "records": block.counted,
        "bytes": block.size,
        "stored_bytes": maker.stored_bytes,
        "raw_bytes": maker.raw_bytes,
        "ratio": _ratio(maker.stored_bytes, maker.raw_bytes),
        "kind": BlockKind(maker.kind).name.lower(),
        "form": _form(maker),
        "codec": "zstd" if maker.codec else "none",
        "path": BlockPath(leader.path).name.lower() if leader.path in list(BlockPath) else str(leader.path),
        "windows": [[window.start, window.stop] for window in block.windows],
        "durable_end": leader.durable_end,
        "append_time": format_time_us(leader.append_time_us),
        "file": placed.file,
        "position": placed.position,
    }


def _ratio(stored_bytes: int, raw_bytes: int) -> float | None:
    return round(stored_bytes / raw_bytes, 4) if raw_bytes else None


def _form(maker: Maker) -> str:
    try:
        if maker.kind == BlockKind.FRAMES:
            return FrameForm(maker.form).name.lower()
        if maker.kind == BlockKind.FOREIGN:
            return ForeignForm(maker.form).name.lower()
    except ValueError:
        pass  # a form of a newer Tidelog: its number says all we know
    return str(maker.form)


def _store_facts(source: LogSource) -> Facts:
    store = source.store
    if store is None:
        return {}
    return {
        "clean": store.clean,
        "incarnation": store.state.get("incarnation"),
        "channels": len(store.names()),
        "wal_files": len(store.wals),
        "wal_bytes": sum(wal.bytes for wal in store.wals),
    }


def _stream_facts(stream: Stream) -> Facts:
    if isinstance(stream, LpjStream):
        return {
            "lpj_version": stream.version,
            "lpj_block_size": stream.block_size,
            "lpj_compression": stream.compression,
            "lpj_indexed": stream.indexed,
            "torn_bytes": stream.torn_bytes,
        }
    if isinstance(stream, JournalStream):
        meta = stream.meta
        named = {name: meta.get(name) for name in ("lineage", "head", "leased_end", "acked", "clean")}
        return {"sealed_end": stream.sealed_end, **{f"journal_{name}": value for name, value in named.items()}}
    return {}


def _log_facts(log: LogFiles) -> Facts:
    return {
        "folder": log.folder or ".",
        "channel_id": log.channel_id,
        "generation": log.generation,
        "clean": log.clean,
        "incarnation": log.state.get("incarnation"),
        "sync_point": log.sync_point,
        "bytes_to_cut": log.torn_bytes(),
        "bytes": log.total_bytes,
        "segments": [_segment_facts(segment) for segment in log.segments],
    }


def _segment_facts(segment: SegmentFile) -> Facts:
    index = "absent" if segment.index_bytes is None else "present" if segment.index is not None else "damaged"
    return {
        "file": segment.path,
        "base_offset": segment.base_offset,
        "bytes": segment.size,
        "newest": segment.newest,
        "index": index,
    }


# --- for people ----------------------------------------------------------------------------------


def _print_stream(facts: Facts) -> None:
    if facts["channel"] is not None:
        print(f"\nchannel {facts['channel']}")
    rows = [_row(block) for block in facts["block_list"]]
    print_table("", _COLUMNS, rows, left=_LEFT)
    if len(rows) < facts["blocks"]:
        print(f"{facts['blocks'] - len(rows)} more blocks; --limit 0 lists all of them\n")
    hidden = {"channel", "block_list", "logs", "lineages", "kinds", "damaged_places"}
    shown = {name: value for name, value in facts.items() if name not in hidden and value is not None}
    shown["stored_bytes"] = f"{facts['stored_bytes']} ({format_bytes(facts['stored_bytes'])})"
    shown["kinds"] = ", ".join(f"{count} {kind}" for kind, count in facts["kinds"].items()) or "none"
    print_facts(shown)
    for lineage in facts["lineages"]:
        who = lineage["lineage"] or "(none)"
        print(f"lineage {who}: seqs {lineage['first_seq']} to {lineage['last_seq']}, {lineage['records']} records")
    for log in facts["logs"]:
        state = "clean" if log["clean"] else "not closed properly"
        print(
            f"log {log['folder']}: {state}, synced to {log['sync_point']}, "
            f"{log['bytes_to_cut']} bytes would be cut on open"
        )
        for segment in log["segments"]:
            print(f"  {segment['file']}  {format_bytes(segment['bytes'])}, index {segment['index']}")
    for place in facts["damaged_places"]:
        print(f"DAMAGE  {place}")


def _row(block: Facts) -> list[str]:
    seqs = "" if block["first_seq"] is None else f"{block['first_seq']}-{block['last_seq']}"
    return [
        str(block["offset"]),
        str(block["epoch"]),
        seqs,
        block["time_min"],
        str(block["records"]),
        str(block["bytes"]),
        "" if block["ratio"] is None else f"{block['ratio']:.3f}",
        block["kind"],
        block["form"] if block["codec"] == "none" else f"{block['form']} {block['codec']}",
        block["path"],
        str(len(block["windows"])) if block["windows"] else "",
    ]
