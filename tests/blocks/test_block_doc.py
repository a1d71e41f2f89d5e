"""docs/formats/block.md says what the code does: tables, limits, bodies and the example are compared."""

from __future__ import annotations

import re
import struct
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tidelog.blocks.block import Block
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.decode import counted_frames, decode_block_frames
from tidelog.blocks.foreign import ForeignForm
from tidelog.blocks.frames import FrameForm, encode_frames
from tidelog.blocks.header import (
    DEFAULT_LIMITS,
    HEAD_BYTES,
    LEADER_FIELDS,
    MAKER_BYTES,
    MAKER_FIELDS,
    WINDOW_BYTES,
    BlockKind,
    Codec,
)
from tidelog.blocks.messages import Message, encode_messages

PAGE = Path(__file__).parents[2] / "docs/formats/block.md"


@cache
def section(heading: str) -> str:
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert found, f"the page has no section {heading!r}"
    return found[1]


def table(heading: str) -> list[list[str]]:
    """The rows of a section's first table, without its head."""
    lines = [line for line in section(heading).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def field_rows(fields: tuple[tuple[str, str, str], ...], start: int) -> list[list[str]]:
    rows, offset = [], start
    for name, code, meaning in fields:
        size = struct.calcsize("<" + code)
        rows.append([str(offset), str(size), name, meaning])
        offset += size
    return rows


def test_the_header_tables_are_those_of_the_code() -> None:
    assert table("The maker's half") == field_rows(MAKER_FIELDS, 0)
    assert table("The leader's half") == field_rows(LEADER_FIELDS, MAKER_BYTES)


def test_the_windows_follow_the_header() -> None:
    assert table("Windows")[0][0] == f"{HEAD_BYTES} + {WINDOW_BYTES}k"


def test_the_limits_are_those_of_the_code() -> None:
    assert {row[0]: int(row[1]) for row in table("Limits")} == asdict(DEFAULT_LIMITS)


def test_every_kind_codec_and_form_is_named() -> None:
    meanings = {row[2]: row[3] for row in table("The maker's half")}
    assert meanings["kind"] == ", ".join(f"{kind.value} {kind.name.lower()}" for kind in BlockKind)
    assert meanings["codec"] == ", ".join(f"{codec.value} {codec.name.lower()}" for codec in Codec)
    headings = re.findall(r"^### Form (\d), (.*)$", PAGE.read_text(), flags=re.MULTILINE)
    assert headings == [("1", "plain"), ("2", "plain and wide"), ("3", "delta planes")]
    assert [int(number) for number, _ in headings] == [form.value for form in FrameForm]
    assert [int(row[0]) for row in table("Foreign bodies (kind 3)")] == [form.value for form in ForeignForm]


def example() -> bytes:
    (listing,) = re.findall(r"^```hex\n(.*?)^```", section("An example"), flags=re.DOTALL | re.MULTILINE)
    return b"".join(bytes.fromhex(line.split("  ")[0]) for line in listing.splitlines())


def test_the_example_decodes_to_what_the_page_says() -> None:
    block = Block.parse(example())
    rows = [
        [str(block.maker.base_seq + number), str(time_us), f"{can_id:08x}", payload.hex()]
        for number, (time_us, can_id, payload) in enumerate(decode_block_frames(block).rows())
    ]
    assert rows == table("An example")
    assert block.offsets == range(500, 502)
    assert block.leader.channel_id == 7
    assert [seq for part in block.counted_seqs() for seq in part] == [1000, 1002]
    assert [row[2].hex() for row in counted_frames(block).rows()] == ["0102030405060708", "0102030405"]


def test_the_example_is_what_the_encoder_writes() -> None:
    """Golden bytes: a change here is a change of the format, and needs a decision record."""
    data = example()
    read = Block.parse(data)
    frames = FrameColumns.from_rows(
        (int(time_us), int(can_id, 16), bytes.fromhex(payload)) for _, time_us, can_id, payload in table("An example")
    )
    again = encode_frames(frames, base_seq=1000, producer=bytes(range(16))).stamp(
        base_offset=500,
        channel_id=7,
        leader_epoch=3,
        append_time_us=1_700_000_001_000_000,
        durable_end=480,
        path=read.leader.path,
        windows=[range(0, 1), range(2, 3)],
    )
    assert again.tobytes() == data
    assert again.leader == read.leader


# --- bodies --------------------------------------------------------------------------------------


def evaluated(formula: str, **letters: int) -> int:
    """`8 + (w + 13)n` with numbers for its letters."""
    assert re.fullmatch(r"[0-9a-z+() ]+", formula), formula
    return int(eval(re.sub(r"(?<=[0-9a-z)])(?=[a-z(])", "*", formula), {}, letters))


def columns(heading: str, raw: bytes, **letters: int) -> dict[str, bytes]:
    """A body cut into the fields of its table, which must follow each other without a gap."""
    found, position = {}, 0
    for offset, size, name, _ in table(heading):
        assert evaluated(offset, **letters) == position, name
        end = len(raw) if size == "the rest" else position + evaluated(size, **letters)
        found[name] = raw[position:end]
        position = end
    return found


FRAMES = FrameColumns.from_rows([(50, 7, b"abc"), (40, 300, b""), (45, 7, b"abd"), (47, 9, b"x")])


@pytest.mark.parametrize(("heading", "width"), [("Form 1, plain", 4), ("Form 2, plain and wide", 8)])
def test_plain_bodies_lie_as_their_tables_say(heading: str, width: int) -> None:
    times = FRAMES.times_us.copy()
    times[0] += 2**33 if width == 8 else 0
    made = encode_frames(replace(FRAMES, times_us=times))
    assert made.maker.form == int(heading[5])
    fields = columns(heading, bytes(made.body)[: made.maker.raw_bytes], n=4)
    assert np.frombuffer(fields["times"], f"<u{width}").tolist() == (times - times.min()).tolist()
    assert np.frombuffer(fields["can_ids"], "<u4").tolist() == FRAMES.can_ids.tolist()
    assert np.frombuffer(fields["payload_offsets"], "<i4").tolist() == [0, 3, 3, 6, 7]
    assert fields["payload"] == b"abcabdx"


def test_delta_bodies_lie_as_their_table_says() -> None:
    made = encode_frames(FRAMES, delta=True)
    fields = columns("Form 3, delta planes", bytes(made.body)[: made.maker.raw_bytes], n=4, g=3, i=1, t=1)
    assert fields == {
        "groups": struct.pack("<I", 3),
        "reserved": bytes(2),
        "index_bytes": b"\x01",
        "time_bytes": b"\x01",
        "group_ids": struct.pack("<3I", 7, 9, 300),
        "group_lengths": struct.pack("<3H", 3, 1, 0),
        "group_of": b"\0\2\0\1",
        "time_steps": bytes([20, 19, 10, 4]),  # zigzag of +10, -10, +5, +2
        "payload_steps": b"x" + b"a\0" + b"b\0" + b"c\1",
    }


def test_message_bodies_lie_as_their_table_says() -> None:
    records = [Message(time_us=5, key=b"key", value=b"v"), Message(time_us=9, value=None, headers=(("n", b"12"),))]
    made = encode_messages(records)
    heading = "Message bodies (kind 2, form 1)"
    fields = columns(heading, bytes(made.body)[: made.maker.raw_bytes], n=2, h=1, w=4)
    assert fields == {
        "header_count": struct.pack("<I", 1),
        "wide": bytes(4),
        "times": struct.pack("<2I", 0, 4),
        "key_ends": struct.pack("<3i", 0, 3, 3),
        "value_ends": struct.pack("<3i", 0, 1, 1),
        "header_ends": struct.pack("<3i", 0, 0, 1),
        "name_ends": struct.pack("<2i", 0, 1),
        "header_value_ends": struct.pack("<2i", 0, 2),
        "flags": b"\x03\x00",
        "strings": b"keyvn12",
    }
