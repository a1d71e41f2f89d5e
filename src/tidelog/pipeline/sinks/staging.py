"""Batches to publish, on disk before their first record is sent.

A folder holds the sink's producer and a chain of intents. An intent is one batch: its key, the seqs that its records
get and the files that hold them, already encoded as blocks. Once it exists, the batch is frozen: every attempt to
publish it sends the same records under the same seqs, and the channel takes each once. A batch whose key has an intent
is never staged again, even if Spark computes it anew in another order. For a stream only the last intents are kept;
older batches are known by their numbers.

What a caller must keep: the folder exists as long as the checkpoint it belongs to, on a file system shared by driver
and executors.

SG1  An intent is created whole or not at all, and of two drivers that try only one succeeds.
SG2  Seqs of intents follow each other without a gap; files of an intent are synced before it exists.
SG3  Files are removed only after the intent was published, or when no intent ever named them and they are old.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tidelog.blocks.block import MadeBlock
from tidelog.blocks.header import MAKER_BYTES, parse_maker
from tidelog.errors import SinkRefused

_INTENT: Final = "intent-"
_PART: Final = "part-"
_PRODUCER: Final = "producer.json"
_PUBLISHED: Final = "published.json"
_ORPHAN_S: Final = 24 * 3600.0
_KEPT: Final = 16
"""How many published intents of a stream are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkProducer:
    """The one producer of a sink."""

    channel: str
    channel_id: int
    identity: str
    """Id and epoch as blocks carry them, in hex."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The key of a batch: of a stream (query id and number), or a named transaction (number -1)."""

    name: str
    batch: int = -1

    def __str__(self) -> str:
        return self.name if self.batch < 0 else f"{self.name}/{self.batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingIntent:
    number: int
    key: Key
    first_seq: int
    records: int
    parts: tuple[str, ...]


class Staging:
    """One folder."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    @property
    def folder(self) -> Path:
        return self._folder

    # --- parts: written by tasks -------------------------------------------------------------------

    def write_part(self, blocks: Sequence[MadeBlock]) -> tuple[str, int]:
        """Put blocks into a file of their own; returns its name and size."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"{_PART}{secrets.token_hex(12)}"
        self._write(name, (buffer for block in blocks for buffer in block.buffers))
        return name, (self._folder / name).stat().st_size

    def part_bytes(self, name: str) -> int:
        """The size of a part; -1 if it is not here."""
        try:
            return (self._folder / name).stat().st_size
        except FileNotFoundError:
            return -1

    def drop_parts(self, names: Iterable[str]) -> None:
        """Remove files that were never part of an intent."""
        for name in names:
            (self._folder / name).unlink(missing_ok=True)

    def blocks(self, intent: StagingIntent, producer: SinkProducer) -> Iterator[MadeBlock]:
        """The blocks of an intent under their producer and seqs."""
        seq, identity = intent.first_seq, bytes.fromhex(producer.identity)
        for name in intent.parts:
            try:
                data = (self._folder / name).read_bytes()
            except FileNotFoundError:
                raise SinkRefused(
                    channel=producer.channel,
                    problem=f"{name}, a part of batch {intent.key}, is gone from {self._folder}; restore the folder",
                ) from None
            for made in unpacked(data):
                yield made.renumbered(base_seq=seq, producer=identity)
                seq += made.maker.record_count

    # --- the chain: kept by the driver -------------------------------------------------------------

    def producer(self) -> SinkProducer | None:
        found = self._read(_PRODUCER)
        return None if found is None else SinkProducer(**found)

    def keep_producer(self, producer: SinkProducer) -> SinkProducer:
        """Store the intent, or return the existing one."""
        self._create(_PRODUCER, asdict(producer))
        kept = self.producer()
        assert kept is not None
        return kept

    def intents(self) -> list[StagingIntent]:
        """All intents, oldest first."""
        names = sorted(name for name in self._names() if name.startswith(_INTENT) and name.endswith(".json"))
        found = []
        for name in names:
            plain = self._read(name)
            if plain is not None:  # another driver may have removed an old one
                found.append(StagingIntent(**{**plain, "key": Key(**plain["key"]), "parts": tuple(plain["parts"])}))
        return found

    def intent(self, key: Key) -> StagingIntent | None:
        """The intent of this key, unless it is so old that it was removed."""
        return next((intent for intent in self.intents() if intent.key == key), None)

    def claim(self, key: Key, parts: Sequence[tuple[str, int]]) -> StagingIntent:
        """The intent of this key: the one that exists, or a new one with these parts (names and records) (SG1)."""
        self._folder.mkdir(parents=True, exist_ok=True)
        while True:
            intents = self.intents()
            known = next((intent for intent in intents if intent.key == key), None)
            if known is not None:
                return known
            last = intents[-1] if intents else None
            made = StagingIntent(
                number=last.number + 1 if last else 0,
                key=key,
                first_seq=last.first_seq + last.records if last else 1,
                records=sum(records for _, records in parts),
                parts=tuple(name for name, _ in parts),
            )
            if self._create(self._intent_path(made.number).name, asdict(made)):
                return made

    def published_through(self) -> int:
        """Intents up to this number need not be sent again; -1: none."""
        found = self._read(_PUBLISHED)
        return -1 if found is None else int(found["number"])

    def last_batch(self, name: str) -> int:
        """The last batch of this query that is in the channel; -1: none. Batches of a stream come in order."""
        found = self._read(_PUBLISHED) or {}
        return int(found.get("batches", {}).get(name, -1))

    def is_published(self, key: Key) -> bool:
        """Whether a batch is known to be in the channel, without its intent."""
        return 0 <= key.batch <= self.last_batch(key.name)

    def mark_published(self, intent: StagingIntent) -> None:
        """All intents up to this one are committed in the channel; their files may be removed."""
        batches = (self._read(_PUBLISHED) or {}).get("batches", {})
        if intent.key.batch >= 0:
            batches[intent.key.name] = intent.key.batch
        value = {"number": intent.number, "batches": batches}
        self._write(_PUBLISHED, [json.dumps(value).encode()], replaces=True)
        for name in intent.parts:
            (self._folder / name).unlink(missing_ok=True)
        for old in self.intents():
            if old.number <= intent.number - _KEPT and old.key.batch >= 0:
                self._intent_path(old.number).unlink(missing_ok=True)

    def _intent_path(self, number: int) -> Path:
        return self._folder / f"{_INTENT}{number:012d}.json"

    def sweep(self) -> None:
        """Remove old files without an intent: left by failed attempts."""
        named = {name for intent in self.intents() for name in intent.parts}
        for name in self._names():
            path = self._folder / name
            if name.startswith((_PART, ".")) and name not in named:
                # Another driver may be faster.
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - path.stat().st_mtime > _ORPHAN_S:
                        path.unlink()

    # --- files -------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        return os.listdir(self._folder) if self._folder.is_dir() else []

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self._folder / name).read_bytes())
        except FileNotFoundError:
            return None
        return found

    def _create(self, name: str, value: dict[str, Any]) -> bool:
        """Create a file, whole and synced; False if it exists."""
        self._folder.mkdir(parents=True, exist_ok=True)
        fresh = f".{name}.{secrets.token_hex(6)}"
        self._write(fresh, [json.dumps(value).encode()])
        try:
            os.link(self._folder / fresh, self._folder / name)
        except FileExistsError:
            return False
        finally:
            (self._folder / fresh).unlink()
        self._sync_folder()
        return True

    def _write(self, name: str, buffers: Iterable[Any], *, replaces: bool = False) -> None:
        target = self._folder / (f".{name}.{secrets.token_hex(6)}" if replaces else name)
        with open(target, "wb") as file:
            for buffer in buffers:
                file.write(buffer)
            file.flush()
            os.fsync(file.fileno())
        if replaces:
            target.replace(self._folder / name)
        self._sync_folder()

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def unpacked(data: bytes) -> Iterator[MadeBlock]:
    """Made blocks that lie end to end, each verified."""
    view = memoryview(data)
    position = 0
    while position < len(view):
        size = MAKER_BYTES + parse_maker(view[position:]).padded_bytes
        yield MadeBlock.parse(view[position : position + size])
        position += size
