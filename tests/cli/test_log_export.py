"""`tidelog log export` for lplex: in seq order, with device tables, in the compression and block size asked for."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cli.commands import LINEAGE, START_US, Tidelog, frames
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.lpj import LpjDevice
from tidelog.compat.lpj import CompressionName, LpjReader, LpjWriter
from tidelog.nmea.devices import Name, Product, introductions
from tidelog.storage.log.log import Log
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.recovery import open_log
from tidelog.storage.os_disk import OsDisk

OTHER = bytes(range(16, 32))
SOUNDER = Name(
    unique_number=7, manufacturer_code=137, device_instance=0, device_function=130, device_class=60, industry_group=4
)
PRODUCT = Product(product_code=5, model_id="DST800", model_serial="A1")


def new_log(folder: Path) -> Log:
    options = LogOptions(segment_bytes_max=4096, reserve_bytes=0)
    return open_log(OsDisk(folder.parent), folder.name, now_us=START_US, options=options)


def arrive(log: Log, *parts: range, producer: bytes = LINEAGE) -> None:
    """Frames of these seqs, in this order."""
    for seqs in parts:
        made = encode_frames(frames(len(seqs), first=seqs.start), base_seq=seqs.start, producer=producer, delta=False)
        log.append(made, now_us=START_US)


def verified(path: Path) -> list[int]:
    """The rule of lplex's `verify`: every frame's seq follows the one before, and every checksum fits."""
    seqs: list[int] = []
    with LpjReader(path) as reader:
        for block in reader:
            found = block.decode()
            assert found.damage is None
            seqs += range(found.base_seq, found.base_seq + len(found.frames))
    return seqs


def jumps(seqs: list[int]) -> list[tuple[int, int]]:
    return [(before, after) for before, after in pairwise(seqs) if after != before + 1]


def test_what_backfill_brought_late_is_exported_in_its_place(tidelog: Tidelog, tmp_path: Path) -> None:
    """An outage: Live goes on at 81 while Backfill brings 41 to 80, both at once."""
    log = new_log(tmp_path / "log")
    arrive(log, range(1, 41), range(81, 101), range(41, 61), range(101, 121), range(61, 81))
    log.close(START_US)
    result = tidelog("log", "export", tmp_path / "log", tmp_path / "out.lpj", "--json").json
    assert (result["frames"], result["gaps"], result["lineage_list"]) == (120, 0, [LINEAGE.hex()])
    assert verified(tmp_path / "out.lpj") == list(range(1, 121))
    tidelog("log", "export", tmp_path / "log", tmp_path / "out.log")
    times = [float(line[1:18]) for line in (tmp_path / "out.log").read_text().splitlines()]
    assert times == sorted(times)


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_arrival_is_exported_in_seq_order(tidelog: Tidelog, tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(2, 300), 30))
    parts = [range(start, stop) for start, stop in zip([1, *cuts], [*cuts, 301], strict=True)]
    lost = rng.choice(parts[1:-1])
    parts.remove(lost)
    rng.shuffle(parts)
    log = new_log(tmp_path / "log")
    arrive(log, *parts)
    log.close(START_US)
    result = tidelog("log", "export", tmp_path / "log", tmp_path / "out.lpj", "--json").json
    assert result["gaps"] == 1
    seqs = verified(tmp_path / "out.lpj")
    assert seqs == [seq for seq in range(1, 301) if seq not in lost]
    assert jumps(seqs) == [(lost.start - 1, lost.stop)], "only what is missing is a gap"
    rows = tidelog("log", "dump", tmp_path / "out.lpj").rows
    by_seq = {row["seq"]: row["data"] for row in tidelog("log", "dump", tmp_path / "log").rows}
    assert {row["seq"]: row["data"] for row in rows} == by_seq


def test_gaps_can_be_filled_with_frames_that_say_so(tidelog: Tidelog, tmp_path: Path) -> None:
    """After a power cut the leased seqs are void for ever, and lplex's verify calls the jump an error."""
    log = new_log(tmp_path / "log")
    arrive(log, range(1, 21), range(20_021, 20_041), range(31, 41))
    arrive(log, range(5, 11), range(12, 13), producer=OTHER)
    log.close(START_US)
    target = tmp_path / "out.lpj"
    result = tidelog(
        "log", "export", tmp_path / "log", target, "--lineage", LINEAGE.hex(), "--fill-gaps", "--json"
    ).json
    assert (result["gaps"], result["filled"], result["frames"]) == (2, 10 + 19_980, 20_040)
    assert verified(target) == list(range(1, 20_041))
    rows = tidelog("log", "dump", target).rows
    filled = [row["seq"] for row in rows if (row["pgn"], row["src"], bytes.fromhex(row["data"])) == FILLER]
    assert filled == [*range(21, 31), *range(41, 20_021)]
    by_seq = {row["seq"]: row["data"] for row in tidelog("log", "dump", tmp_path / "log").rows if is_of(row, LINEAGE)}
    assert {row["seq"]: row["data"] for row in rows if row["seq"] not in set(filled)} == by_seq
    said = tidelog("log", "export", tmp_path / "log", tmp_path / "both.lpj", "--fill-gaps").out
    assert "19991 frames that say `no frame` stand in for them" in said
    assert jumps(verified(tmp_path / "both.lpj")) == [(20_040, 5)], "from one lineage to the next"


FILLER = (65536, 254, b"no frame")


def is_of(row: dict[str, object], lineage: bytes) -> bool:
    return row["lineage"] == lineage.hex()


def test_a_log_without_gaps_is_copied_though_gaps_were_to_be_filled(tidelog: Tidelog, tmp_path: Path) -> None:
    with LpjWriter(tmp_path / "boat.lpj", block_size=4096) as writer:
        writer.append(frames(300), first_seq=1)
    tidelog("log", "import", tmp_path / "boat.lpj", tmp_path / "log")
    result = tidelog("log", "export", tmp_path / "log", tmp_path / "out.lpj", "--fill-gaps", "--json").json
    assert (result["unchanged"], result["filled"]) == (True, 0)
    assert (tmp_path / "out.lpj").read_bytes() == (tmp_path / "boat.lpj").read_bytes()


def test_a_gap_that_is_too_wide_to_fill_is_refused(tidelog: Tidelog, tmp_path: Path) -> None:
    log = new_log(tmp_path / "log")
    arrive(log, range(1, 3), range(2**40, 2**40 + 2))
    log.close(START_US)
    refused = tidelog("log", "export", tmp_path / "log", tmp_path / "out.lpj", "--fill-gaps", code=2)
    assert "fills at most 10000000; export without it" in refused.err
    assert not (tmp_path / "out.lpj").exists()


def test_a_seq_that_is_there_twice_is_written_once(tidelog: Tidelog, tmp_path: Path) -> None:
    log = new_log(tmp_path / "log")
    arrive(log, range(1, 21), range(11, 31), range(5, 8))
    log.close(START_US)
    result = tidelog("log", "export", tmp_path / "log", tmp_path / "out.lpj", "--json").json
    assert (result["frames"], result["left_out"]) == (30, {"frames whose seq came before": 13})
    assert verified(tmp_path / "out.lpj") == list(range(1, 31))


def test_lineages_follow_each_other_and_one_can_be_chosen(tidelog: Tidelog, tmp_path: Path) -> None:
    log = new_log(tmp_path / "log")
    arrive(log, range(21, 41))
    arrive(log, range(1, 11), producer=OTHER)
    arrive(log, range(1, 21))
    log.close(START_US)
    said = tidelog("log", "export", tmp_path / "log", tmp_path / "both.lpj").out
    assert "2 lineages follow each other" in said
    assert verified(tmp_path / "both.lpj") == [*range(1, 41), *range(1, 11)]
    for lineage, expected in ((LINEAGE, range(1, 41)), (OTHER, range(1, 11))):
        target = tmp_path / f"{lineage.hex()}.lpj"
        tidelog("log", "export", tmp_path / "log", target, "--lineage", lineage.hex()[:6])
        assert verified(target) == list(expected)
    wrong = tidelog("log", "export", tmp_path / "log", tmp_path / "none.lpj", "--lineage", "ff", code=2)
    assert LINEAGE.hex() in wrong.err
    assert not (tmp_path / "none.lpj").exists()


@pytest.mark.parametrize("compression", ["none", "zstd", "zstd-dict"])
@pytest.mark.parametrize("block_size", ["4KiB", "65536"])
def test_compression_and_block_size_can_be_chosen(
    tidelog: Tidelog, tmp_path: Path, compression: CompressionName, block_size: str
) -> None:
    log = new_log(tmp_path / "log")
    arrive(log, range(1, 2_001))
    log.close(START_US)
    options = ("--compression", compression, "--block-size", block_size)
    tidelog("log", "export", tmp_path / "log", tmp_path / "out.lpj", *options)
    with LpjReader(tmp_path / "out.lpj") as reader:
        assert reader.block_size == (4096 if block_size == "4KiB" else 65536)
        assert reader.compression.name.lower().replace("_", "-") == compression
    assert verified(tmp_path / "out.lpj") == list(range(1, 2_001))


def test_wrong_shapes_are_refused(tidelog: Tidelog, tmp_path: Path) -> None:
    log = new_log(tmp_path / "log")
    arrive(log, range(1, 3))
    log.close(START_US)
    for option in (("--block-size", "5000"), ("--block-size", "1KiB"), ("--block-size", "large")):
        tidelog("log", "export", tmp_path / "log", tmp_path / "out.lpj", *option, code=2)
    tidelog("log", "export", tmp_path / "log", tmp_path / "out.log", "--compression", "none", code=2)
    tidelog("log", "export", tmp_path / "log", tmp_path / "out.log", "--fill-gaps", code=2)
    assert not (tmp_path / "out.log").exists()


def test_devices_that_claim_an_address_are_in_the_tables(tidelog: Tidelog, tmp_path: Path) -> None:
    claims = [(START_US + 50_000, can_id, payload) for can_id, payload in introductions([(3, SOUNDER, PRODUCT)])]
    before, after = list(frames(50).rows()), list(frames(3_000, first=50).rows())
    log = new_log(tmp_path / "log")
    columns = FrameColumns.from_rows([*before, *claims, *after])
    log.append(encode_frames(columns, base_seq=1, producer=LINEAGE, delta=False), now_us=START_US)
    log.close(START_US)
    tidelog("log", "export", tmp_path / "log", tmp_path / "out.lpj", "--block-size", "16KiB")
    with LpjReader(tmp_path / "out.lpj") as reader:
        first, *later = [block.decode() for block in reader]
    assert first.device_at(3, 49) is None, "nobody knew it before its claim"
    device = first.device_at(3, 52)
    assert device is not None
    assert (device.name, device.model_id, device.serial) == (SOUNDER.to_int(), b"DST800", b"A1")
    assert later
    assert all((found := block.device_at(3, 0)) is not None and found.name == SOUNDER.to_int() for block in later)
    assert verified(tmp_path / "out.lpj") == list(range(1, len(columns) + 1))


def test_tables_of_lplex_blocks_survive_another_shape(tidelog: Tidelog, tmp_path: Path) -> None:
    with LpjWriter(tmp_path / "boat.lpj", block_size=4096) as writer:
        writer.set_devices([LpjDevice(source=3, name=77, model_id=b"sounder")])
        writer.append(frames(1_000), first_seq=1)
    tidelog("log", "import", tmp_path / "boat.lpj", tmp_path / "log")
    result = tidelog("log", "export", tmp_path / "log", tmp_path / "out.lpj", "--block-size", "64KiB", "--json").json
    assert (result["unchanged"], result["left_out"]) == (False, {})
    with LpjReader(tmp_path / "out.lpj") as reader:
        blocks = [block.decode() for block in reader]
    assert [device.model_id for block in blocks for device in block.devices] == [b"sounder"] * len(blocks)
    assert verified(tmp_path / "out.lpj") == list(range(1, 1_001))


def test_a_storm_of_claims_does_not_cut_a_block_for_each(tidelog: Tidelog, tmp_path: Path) -> None:
    rows = list(frames(10).rows())
    for number in range(200):
        name = Name(
            unique_number=number + 1,
            manufacturer_code=137,
            device_instance=0,
            device_function=130,
            device_class=60,
            industry_group=4,
        )
        told = introductions([(number, name, PRODUCT)])
        rows += [(START_US + 100_000 + number, can_id, payload) for can_id, payload in told]
    log = new_log(tmp_path / "log")
    columns = FrameColumns.from_rows(rows)
    log.append(encode_frames(columns, base_seq=1, producer=LINEAGE, delta=False), now_us=START_US)
    log.close(START_US)
    tidelog("log", "export", tmp_path / "log", tmp_path / "out.lpj")
    with LpjReader(tmp_path / "out.lpj") as reader:
        assert len(reader) == 1
        [block] = [stored.decode() for stored in reader]
    assert {device.source for device in block.devices} == set(range(200))
    # In a small block there is no room for all of them: frames come first, and what is left out is said.
    result = tidelog("log", "export", tmp_path / "log", tmp_path / "small.lpj", "--block-size", "4KiB", "--json").json
    assert verified(tmp_path / "small.lpj") == list(range(1, len(columns) + 1))
    assert sum(result["left_out"].values()) > 0
