"""lplex journal files (.lpj): reading any that lplex wrote, writing version 2.

Reading gives *stored* blocks: the bytes exactly as they lie in the file, so that they can be sent on unchanged, with
`decode()` for callers that want frames. The codec of a block is `tidelog.blocks.lpj`. The files belong to other
programs, so plain `open` is used instead of a `Disk`, in the functions at the end only.

Invariants:
CLP1  A block is handed out only after it was inflated and its checksum and framing were checked.
CLP2  A file that ends early gives every whole block before its end, and says how many bytes were left.
CLP3  An index is used only if it describes the file from the first block on; otherwise the file is scanned.
CLP4  The writer never touches a file that exists, and starts a new block wherever the format could not represent the
      frames: at a seq jump, and where the clock runs backwards.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import BinaryIO, Final, Literal, Self

import numpy as np
import zstandard

from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.lpj import (
    LPJ_BLOCK_BYTES,
    LPJ_DICTIONARY_BYTES,
    LPJ_DICTIONARY_BYTES_MAX,
    LpjBlock,
    LpjBlockSummary,
    LpjCompression,
    LpjDevice,
    check_lpj_block_size,
    check_lpj_frames,
    decode_lpj_block,
    encode_lpj_block,
    join_lpj_dictionary,
    lpj_device_table_bytes,
    lpj_run,
    lpj_space_bytes,
    open_lpj_stored,
    split_lpj_dictionary,
    summarize_lpj_block,
)
from tidelog.compat.lpj_table import OpenTable
from tidelog.errors import (
    BadBlock,
    BadJournalFile,
    BlockCorrupt,
    DiskError,
    DiskFull,
    InvalidConfig,
    InvalidRecord,
    LogClosed,
    NotALog,
    SyncFailed,
)

FILE_MAGIC: Final = b"LPJ"
FILE_HEADER_BYTES: Final = 16
INDEX_MAGIC: Final = b"LPJI"
INDEX_BLOCKS_MAX: Final = 262_144
"""lplex takes no index with more entries; neither does this reader."""

_FILE_HEADER: Final = struct.Struct("<3sBII4x")
_INDEX_FOOTER: Final = struct.Struct("<I4s")
_DICTIONARY_TRAINING_BYTES_MIN: Final = 1024
_DICTIONARY_SAMPLE_BYTES: Final = 256

CompressionName = Literal["none", "zstd", "zstd-dict"]
_COMPRESSIONS: Final[dict[str, LpjCompression]] = {
    "none": LpjCompression.NONE,
    "zstd": LpjCompression.ZSTD,
    "zstd-dict": LpjCompression.ZSTD_DICT,
}
_NAMES: Final = {compression: name for name, compression in _COMPRESSIONS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class LpjStoredBlock:
    """One block as it lies in its file."""

    path: str
    position: int
    """The offset of its framing in the file."""
    base_time_us: int
    base_seq: int
    """0 in version 1."""
    version: int
    block_size: int
    compression: LpjCompression
    stored: bytes
    """none: the whole block. zstd: the zstd frame, without the framing before it. zstd-dict: DictLen,
    CompressedLen, dictionary and frame."""

    @property
    def dictionary(self) -> bytes | None:
        if self.compression is not LpjCompression.ZSTD_DICT:
            return None
        return split_lpj_dictionary(self.stored)[0]

    @property
    def frame_count(self) -> int:
        """Inflates and checks the block: the count is in its trailer."""
        return self.check().frame_count

    def inflate(self) -> bytes | memoryview:
        """The logical block, `block_size` bytes, not checked."""
        return open_lpj_stored(self.stored, compression=self.compression, block_size=self.block_size)

    def check(self) -> LpjBlockSummary:
        """Inflate, check the checksum, and check that framing and block agree."""
        summary = summarize_lpj_block(self.inflate(), version=self.version)
        if (summary.base_time_us, summary.base_seq) != (self.base_time_us, self.base_seq):
            raise BlockCorrupt(
                problem=f"framing says time {self.base_time_us} and seq {self.base_seq}, "
                f"the block says {summary.base_time_us} and {summary.base_seq}"
            )
        return summary

    def decode(self, *, salvage: bool = False) -> LpjBlock:
        return decode_lpj_block(self.inflate(), version=self.version, salvage=salvage)


@dataclass(frozen=True, slots=True, kw_only=True)
class LpjDamage:
    """A place in the file that was skipped."""

    position: int
    length: int
    problem: str


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where a block's framing starts and where the next one does."""

    position: int
    end: int


@dataclass(slots=True)
class _Layout:
    """Where the blocks are, and what is not a block."""

    slots: list[_Slot] = field(default_factory=list)
    torn_bytes: int = 0
    indexed: bool = False


class LpjReader:
    """The blocks of one .lpj file, in file order. Close it, or use it in a `with`.

    `on_damage="raise"` stops at the first damaged block with `BadJournalFile`; `"skip"` lists it in
    `damaged` and goes on. A torn tail is not damage: a crashed lplex always leaves one.
    """

    def __init__(self, path: str | os.PathLike[str], *, on_damage: Literal["raise", "skip"] = "raise") -> None:
        self.path = os.fspath(path)
        self.damaged: list[LpjDamage] = []
        self._on_damage = on_damage
        self._file = open_foreign(self.path)
        try:
            self._size = self._file.seek(0, os.SEEK_END)
            self.version, self.block_size, self.compression = self._read_header()
            self._layout = self._find_blocks()
        except BaseException:
            self._file.close()
            raise

    @property
    def torn_bytes(self) -> int:
        """Bytes after the last whole block that are neither block nor index."""
        return self._layout.torn_bytes

    @property
    def indexed(self) -> bool:
        """Whether the file's index was there and used; uncompressed files need none."""
        return self._layout.indexed

    @property
    def compression_name(self) -> str:
        return _NAMES[self.compression]

    def __len__(self) -> int:
        return len(self._layout.slots)

    def __iter__(self) -> Iterator[LpjStoredBlock]:
        return self.blocks()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def blocks(self, start: int = 0) -> Iterator[LpjStoredBlock]:
        """Checked blocks from number `start` on."""
        for slot in self._layout.slots[start:]:
            try:
                block = self._read(slot)
                block.check()
            except BadBlock as error:
                if self._on_damage == "raise":
                    raise BadJournalFile(path=self.path, position=slot.position, problem=error.problem) from error
                self._note_damage(slot, error.problem)
                continue
            yield block

    def block_at(self, number: int) -> LpjStoredBlock:
        """Block `number` as stored; only its framing is checked."""
        slot = self._layout.slots[number]
        try:
            return self._read(slot)
        except BadBlock as error:
            raise BadJournalFile(path=self.path, position=slot.position, problem=error.problem) from error

    def _note_damage(self, slot: _Slot, problem: str) -> None:
        damage = LpjDamage(position=slot.position, length=slot.end - slot.position, problem=problem)
        # A second pass over the file meets the same damage again.
        if damage not in self.damaged:
            self.damaged.append(damage)

    def _read_header(self) -> tuple[int, int, LpjCompression]:
        header = read_at(self._file, 0, FILE_HEADER_BYTES)
        if header[:3] != FILE_MAGIC[: len(header)]:
            raise NotALog(path=self.path, problem="this is not an .lpj file: it does not start with LPJ")
        if len(header) < FILE_HEADER_BYTES:
            # The writer died before its header was whole: a file without blocks, of no known shape.
            return 2, LPJ_BLOCK_BYTES, LpjCompression.NONE
        _, version, block_size, flags = _FILE_HEADER.unpack(header)
        if version not in (1, 2):
            raise BadJournalFile(
                path=self.path, position=3, problem=f"version {version} is not known, only 1 and 2 are"
            )
        try:
            check_lpj_block_size(block_size)
        except BadBlock as error:
            raise BadJournalFile(path=self.path, position=4, problem=error.problem) from error
        if flags & 0xFF > LpjCompression.ZSTD_DICT:
            raise BadJournalFile(path=self.path, position=8, problem=f"compression {flags & 0xFF} is not known")
        return version, block_size, LpjCompression(flags & 0xFF)

    def _find_blocks(self) -> _Layout:
        if self._size < FILE_HEADER_BYTES:
            return _Layout(torn_bytes=self._size)
        if self.compression is LpjCompression.NONE:
            count, torn_bytes = divmod(self._size - FILE_HEADER_BYTES, self.block_size)
            positions = range(FILE_HEADER_BYTES, FILE_HEADER_BYTES + count * self.block_size, self.block_size)
            return _Layout(slots=[_Slot(at, at + self.block_size) for at in positions], torn_bytes=torn_bytes)
        return self._layout_from_index() or self._layout_from_scan()

    def _layout_from_index(self) -> _Layout | None:
        footer_start = self._size - _INDEX_FOOTER.size
        if footer_start < FILE_HEADER_BYTES:
            return None
        count, magic = _INDEX_FOOTER.unpack(read_at(self._file, footer_start, _INDEX_FOOTER.size))
        table_start = footer_start - 8 * count
        if magic != INDEX_MAGIC or count > INDEX_BLOCKS_MAX or table_start < FILE_HEADER_BYTES:
            return None
        offsets = np.frombuffer(read_at(self._file, table_start, 8 * count), dtype="<u8")
        edges = np.append(offsets, np.uint64(table_start))
        # lplex accepts any rising offsets. That the first block lies right behind the header rules out an index that
        # hides blocks, and bytes of a torn block that happen to end in LPJI.
        if int(edges[0]) != FILE_HEADER_BYTES or not bool(np.all(edges[1:] > edges[:-1])):
            return None
        limits = edges.tolist()
        return _Layout(slots=[_Slot(*pair) for pair in pairwise(limits)], indexed=True)

    def _layout_from_scan(self) -> _Layout:
        layout = _Layout()
        position = FILE_HEADER_BYTES
        framing_bytes = self._framing_bytes()
        while position + framing_bytes <= self._size:
            body_bytes = self._body_bytes(read_at(self._file, position, framing_bytes))
            end = position + framing_bytes + body_bytes
            # A length of zero is where a preallocated or half-synced tail starts.
            if body_bytes == 0 or end > self._size:
                break
            layout.slots.append(_Slot(position, end))
            position = end
        layout.torn_bytes = self._size - position
        return layout

    def _bases_bytes(self) -> int:
        return 8 if self.version == 1 else 16

    def _framing_bytes(self) -> int:
        """Bytes before the zstd frame (before the dictionary, if there may be one)."""
        lengths_bytes = {LpjCompression.NONE: 0, LpjCompression.ZSTD: 4, LpjCompression.ZSTD_DICT: 8}[self.compression]
        return lengths_bytes and self._bases_bytes() + lengths_bytes

    def _body_bytes(self, framing: bytes) -> int:
        """What the framing says follows it; 0 when it says that there is no frame."""
        lengths = [length for (length,) in struct.iter_unpack("<I", framing[self._bases_bytes() :])]
        return sum(lengths) if lengths[-1] else 0

    def _unpack_bases(self, framing: bytes) -> tuple[int, int]:
        (base_time_us,) = struct.unpack_from("<q", framing)
        base_seq = 0 if self.version == 1 else struct.unpack_from("<Q", framing, 8)[0]
        return base_time_us, base_seq

    def _read(self, slot: _Slot) -> LpjStoredBlock:
        length = slot.end - slot.position
        if length > self._stored_bytes_max():
            raise BlockCorrupt(problem=f"{length} stored bytes are more than a block of {self.block_size} can need")
        raw = read_at(self._file, slot.position, length)
        framing_bytes = self._framing_bytes()
        if len(raw) < max(length, framing_bytes, self._bases_bytes()):
            raise BlockCorrupt(problem=f"only {len(raw)} bytes are left of the block's {length}")
        stored = raw
        if self.compression is not LpjCompression.NONE:
            wanted = framing_bytes + self._body_bytes(raw[:framing_bytes])
            if wanted != length:
                raise BlockCorrupt(problem=f"framing says {wanted} bytes, the next block starts after {length}")
            # zstd-dict keeps its two lengths, which the dictionary cannot be found without.
            stored = raw[framing_bytes:] if self.compression is LpjCompression.ZSTD else raw[self._bases_bytes() :]
        base_time_us, base_seq = self._unpack_bases(raw)
        return LpjStoredBlock(
            path=self.path,
            position=slot.position,
            base_time_us=base_time_us,
            base_seq=base_seq,
            version=self.version,
            block_size=self.block_size,
            compression=self.compression,
            stored=stored,
        )

    def _stored_bytes_max(self) -> int:
        """A zstd frame of random bytes grows by less than a hundredth."""
        return self.block_size + self.block_size // 64 + 1024 + LPJ_DICTIONARY_BYTES_MAX


class LpjWriter:
    """Writes one new version 2 file. Close it, or use it in a `with`: the last block is written then.

    Frames are durable only after `close`. As in lplex, a crash before loses the open block.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        block_size: int = LPJ_BLOCK_BYTES,
        compression: CompressionName = "zstd",
        level: int = 3,
    ) -> None:
        try:
            check_lpj_block_size(block_size)
        except BadBlock as error:
            raise InvalidConfig(section="lpj", problems=[error.problem]) from error
        if compression not in _COMPRESSIONS:
            raise InvalidConfig(section="lpj", problems=[f"compression {compression!r} is none of {[*_COMPRESSIONS]}"])
        self.path = os.fspath(path)
        self.block_size = block_size
        self.compression = _COMPRESSIONS[compression]
        self.frame_count = 0
        """Frames accepted so far, written or not."""
        self._level = level
        self._table = OpenTable(block_size)
        self._open: list[FrameColumns] = []
        self._open_bytes = 0
        self._open_seq = 0
        self._next_seq = 0
        self._positions: list[int] = []
        self._position = 0
        self._file: BinaryIO | None = create_foreign(self.path)
        self._write(_FILE_HEADER.pack(FILE_MAGIC, 2, block_size, self.compression))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, frames: FrameColumns, *, first_seq: int) -> None:
        """Add frames with the seqs from `first_seq` on. Blocks are cut where they must be."""
        self._check_open()
        check_lpj_frames(frames, base_seq=first_seq)
        if first_seq != self._next_seq:
            self._write_open_block()
            self._open_seq = self._next_seq = first_seq
        position = 0
        while position < len(frames):
            rest = frames.slice(position, len(frames))
            previous_time_us = int(self._open[-1].times_us[-1]) if self._open else None
            count, taken_bytes = lpj_run(
                rest, space_bytes=self._table.space_bytes - self._open_bytes, previous_time_us=previous_time_us
            )
            if count:
                self._open.append(rest.slice(0, count))
                self._open_bytes += taken_bytes
                self._next_seq += count
                self.frame_count += count
                position += count
            if position < len(frames):
                assert count or self._open, "an empty block takes any one frame"
                self._write_open_block()

    def set_devices(self, devices: Sequence[LpjDevice]) -> None:
        """The devices listed in every block from here on. A change starts a new block."""
        self._check_open()
        if tuple(devices) == self._table.entries:
            return
        # Also checks the entries, before the open block is cut for them.
        encode_lpj_block(FrameColumns.from_rows([]), base_seq=0, block_size=self.block_size, devices=devices)
        if lpj_space_bytes(self.block_size, lpj_device_table_bytes(devices)) < self.block_size // 2:
            raise InvalidRecord(problem=f"{len(devices)} devices leave too little room in a block of {self.block_size}")
        self._write_open_block()
        self._table.begin(devices)

    def add_device(self, device: LpjDevice) -> None:
        """What is known of one device from the next frame on; the open block continues, if its table has room."""
        self._check_open()
        if not self._open:
            self.set_devices(self._table.known_with(device))
        elif not self._table.add(device, frame_count=sum(map(len, self._open)), used_bytes=self._open_bytes):
            self._write_open_block()
            self.set_devices(self._table.known_with(device))

    def forget_device(self, source: int) -> None:
        """The address is free: from the next block on it is not listed."""
        self._table.forget(source)
        if not self._open:
            self._table.fold()

    def close(self) -> None:
        """Write what is open, the index of a compressed file, and fsync. Closing twice is harmless."""
        if self._file is None:
            return
        self._write_open_block()
        if self.compression is not LpjCompression.NONE and len(self._positions) <= INDEX_BLOCKS_MAX:
            index = np.array(self._positions, dtype="<u8").tobytes()
            self._write(index + _INDEX_FOOTER.pack(len(self._positions), INDEX_MAGIC))
        file, self._file = self._file, None
        finish_foreign(file, self.path)

    def _check_open(self) -> BinaryIO:
        if self._file is None:
            raise LogClosed(log=self.path)
        return self._file

    def _write_open_block(self) -> None:
        if not self._open:
            return
        frames = FrameColumns.concatenate(self._open)
        devices = self._table.entries
        block = encode_lpj_block(frames, base_seq=self._open_seq, block_size=self.block_size, devices=devices)
        framing = struct.pack("<qQ", int(frames.times_us[0]), self._open_seq)
        position = self._position
        self._write(self._stored(framing, block))
        self._positions.append(position)
        self._open_seq = self._next_seq
        self._open = []
        self._open_bytes = 0
        self._table.fold()

    def _stored(self, framing: bytes, block: bytes) -> bytes:
        if self.compression is LpjCompression.NONE:
            return block
        if self.compression is LpjCompression.ZSTD:
            payload = self._compress(block, None)
            return framing + struct.pack("<I", len(payload)) + payload
        dictionary = self._train(block[: len(framing) + self._open_bytes])
        payload = self._compress(block, dictionary)
        return framing + join_lpj_dictionary(None if dictionary is None else dictionary.as_bytes(), payload)

    def _compress(self, block: bytes, dictionary: zstandard.ZstdCompressionDict | None) -> bytes:
        deflater = zstandard.ZstdCompressor(level=self._level, dict_data=dictionary, write_checksum=True)
        return deflater.compress(block)

    def _train(self, used: bytes) -> zstandard.ZstdCompressionDict | None:
        """A dictionary for one block, or None where lplex would store none either."""
        if len(used) < _DICTIONARY_TRAINING_BYTES_MIN:
            return None
        samples = [used[at : at + _DICTIONARY_SAMPLE_BYTES] for at in range(0, len(used), _DICTIONARY_SAMPLE_BYTES)]
        try:
            return zstandard.train_dictionary(LPJ_DICTIONARY_BYTES, [*samples], dict_id=1, level=self._level)
        except zstandard.ZstdError:
            # Training wants variety; on a bus that repeats itself it fails, and plain zstd does as well.
            return None

    def _write(self, data: bytes) -> None:
        file = self._check_open()
        try:
            write_all(file, data)
        except OSError as error:
            # Part of the block may be in the file: nothing can follow it, and a reader will drop it as torn.
            self._file = None
            file.close()
            raise disk_error(error, operation="write", path=self.path) from error
        self._position += len(data)


# --- the only file access, for captures too ------------------------------------------------------


def open_foreign(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file of another program for reading."""
    try:
        return open(path, "rb")
    except FileNotFoundError as error:
        raise NotALog(path=os.fspath(path), problem="there is no such file; check the path") from error
    except IsADirectoryError as error:
        raise NotALog(path=os.fspath(path), problem="this is a folder; name a file in it") from error
    except OSError as error:
        raise disk_error(error, operation="open", path=os.fspath(path)) from error


def read_at(file: BinaryIO, position: int, length: int) -> bytes:
    """Up to `length` bytes; fewer only at the end of the file."""
    try:
        file.seek(position)
        return file.read(length)
    except OSError as error:
        raise disk_error(error, operation="read", path=str(file.name)) from error


def create_foreign(path: str | os.PathLike[str]) -> BinaryIO:
    """Make a new file; one that exists is left alone, and that is an error."""
    try:
        return open(path, "xb", buffering=0)
    except OSError as error:
        raise disk_error(error, operation="create", path=os.fspath(path)) from error


def write_all(file: BinaryIO, data: bytes) -> None:
    """A file without a buffer may take only part of a write; give it the rest."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def finish_foreign(file: BinaryIO, path: str) -> None:
    """Close a file we wrote, once its bytes and its name are on the disk."""
    try:
        with file:
            file.flush()
            os.fsync(file.fileno())
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise SyncFailed(operation="fsync", path=path, reason=str(error)) from error


def disk_error(error: OSError, *, operation: str, path: str) -> DiskError:
    if error.errno == errno.ENOSPC:
        return DiskFull(operation=operation, path=path, reason="no space is left; free some and write a new file")
    if isinstance(error, FileExistsError):
        return DiskError(
            operation=operation, path=path, reason="the file exists and is not overwritten; choose another name"
        )
    return DiskError(operation=operation, path=path, reason=error.strerror or str(error))
