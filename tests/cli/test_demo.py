"""`tidelog demo` runs to its end, and notices what it promises to notice."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from tests.cli.commands import LINEAGE, START_US, frames, in_subprocess
from tidelog.blocks.frames import encode_frames
from tidelog.cli.demo import LINK_DOWN_S, Story, _check_held, _some, _tell, _tell_backfill
from tidelog.cli.demo_compare import Frames, Held, last_position, read_held, write_lpj
from tidelog.cli.demo_link import HOST, Link
from tidelog.cli.demo_parties import NAME, Parties, PartyFailed, Sight
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store import open_store

DEADLINE_S = 10.0


def test_the_demo_holds_what_it_promises_and_leaves_nothing_behind(tmp_path: Path) -> None:
    # A setting of a real boat on this machine, which the demo must not take up.
    environment = {**os.environ, "TMPDIR": str(tmp_path), "TIDELOG_REPLICATION_TARGET": "cloud.example.com:9443"}
    result = in_subprocess("demo", "--seed", "7", "--json", env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    story = json.loads(result.stdout)
    assert story["failures"] == []
    assert story["seed"] == 7
    assert story["frames_not_equal"] == story["frames_twice"] == 0
    assert story["cloud_frames"] == story["journal_frames"] + story["saved_by_live"]
    assert story["cursor_after_cloud_kill"] > story["cursor_before_cloud_kill"] > 0
    assert story["missing_by_turn"][0] == story["hole_seqs"] > 100 * LINK_DOWN_S
    assert story["missing_by_turn"][-1] == 0
    assert story["seqs_void"] > 0
    assert list(tmp_path.iterdir()) == []


# --- the link ------------------------------------------------------------------------------------


class Echo:
    """A server that sends back what it gets."""

    def __init__(self) -> None:
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(4096):
                connection.sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def link() -> Iterator[Link]:
    echo = Echo()
    made = Link()
    made.target_port = echo.port
    yield made
    made.close()
    echo.close()


def dial(link: Link) -> socket.socket:
    return socket.create_connection((HOST, link.port), timeout=DEADLINE_S)


def test_link_carries_bytes_both_ways(link: Link) -> None:
    with dial(link) as boat:
        boat.sendall(b"hello")
        assert boat.recv(100) == b"hello"


def test_cut_link_ends_connections_and_takes_no_new_ones_until_it_is_mended(link: Link) -> None:
    with dial(link) as before:
        before.sendall(b"x")
        assert before.recv(1) == b"x"
        link.cut()
        assert before.recv(1) == b""
    with dial(link) as during:
        assert during.recv(1) == b""
    link.mend()
    with dial(link) as after:
        after.sendall(b"y")
        assert after.recv(1) == b"y"


def test_link_closes_what_nobody_answers(link: Link) -> None:
    with socket.create_server((HOST, 0)) as nobody:
        link.target_port = nobody.getsockname()[1]
    with dial(link) as boat:
        assert boat.recv(1) == b""


# --- the parties ---------------------------------------------------------------------------------


def test_a_process_that_ends_by_itself_is_told_with_its_last_words(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    try:
        with pytest.raises(PartyFailed, match=r"the cloud ended by itself: .*-tls-cert"):
            parties.start_cloud()  # there are no certificates yet
    finally:
        parties.close()


def test_a_demo_that_cannot_go_on_fails_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "cloud-data").write_text("in the way")
    story = Story(seed=1)
    _tell(story, tmp_path, Console(quiet=True))
    assert [failure.partition(":")[0] for failure in story.failures] == ["the cloud ended by itself"]
    assert "cloud-data" in story.failures[0]


@pytest.mark.parametrize("known", [Sight(cursor=11), Sight(acked=11)], ids=["seen on disk", "acked"])
def test_a_cursor_that_goes_back_is_noticed(tmp_path: Path, known: Sight) -> None:
    parties = Parties(tmp_path)
    try:
        store = open_store(OsDisk(parties.data), now_us=START_US)
        log = store.create_channel(NAME, now_us=START_US)
        log.append(encode_frames(frames(10), base_seq=1, producer=LINEAGE), now_us=START_US)
        store.close(START_US)
        assert parties.look().cursor == 10
        assert parties.cursor_went_back == ""
        parties.sight = known
        parties.look()
        assert parties.cursor_went_back == "the cursor went back from 11 to 10"
    finally:
        parties.close()


# --- what the demo would notice ------------------------------------------------------------------


def held(found: Frames, *, twice: int = 0, damage: tuple[str, ...] = ()) -> Held:
    return Held(frames=found, twice=twice, damage=damage)


def many() -> Frames:
    return {(LINEAGE, seq): (START_US + seq, 0x09F80203, bytes(8)) for seq in range(1, 10_001)}


def told(journal: Held, cloud: Held, *, saved_by_live: int = 0) -> list[str]:
    story = Story(seed=1, saved_by_live=saved_by_live)
    _check_held(story, journal, cloud)
    return story.failures


def test_equal_logs_are_no_failure() -> None:
    more = many() | {(LINEAGE, 20_000): (START_US, 0x09F80203, b"live")}
    assert told(held(many()), held(many())) == []
    assert told(held(many()), held(more), saved_by_live=1) == []


def test_missing_different_doubled_and_foreign_frames_are_failures() -> None:
    missing, different = many(), many()
    del missing[LINEAGE, 5_000]
    different[LINEAGE, 5_000] = (START_US, 0x09F80203, b"changed!")
    unchanged = ["a frame of the journal is not in the cloud as it was recorded"]
    assert told(held(many()), held(missing)) == unchanged
    assert told(held(many()), held(different)) == unchanged
    assert told(held(many()), held(many(), twice=1)) == ["a frame counts twice"]
    foreign = many() | {(bytes(16), 1): (START_US, 0x09F80203, b"whose?")}
    assert told(held(many()), held(foreign)) == ["the cloud has frames that the boat never recorded"]
    assert told(held(many()), held(many(), damage=("a.seg at byte 7",))) == ["a.seg at byte 7"]
    assert told(held({}), held({})) == ["the journal has too few frames"]


OLD, NEW = range(100, 1_100), range(2_000, 4_000)


@pytest.mark.parametrize(
    ("turns", "failure"),
    [
        ([(OLD, NEW), (OLD, range(3_000, 4_000)), (OLD,), (range(600, 1_100),), ()], None),
        ([(OLD, NEW), (range(600, 1_100), NEW), (NEW,), ()], "Backfill did not begin with the newest hole"),
        ([(OLD, NEW), (OLD,), (range(100, 500), range(600, 1_100)), ()], "Backfill did not begin with the newest hole"),
        ([()], "there was no hole after the link had dropped"),
    ],
)
def test_the_order_of_backfill_is_watched(turns: list[tuple[range, ...]], failure: str | None) -> None:
    story = Story(seed=1)
    _tell_backfill(story, [Sight(holes=holes) for holes in turns], Console(quiet=True))
    assert story.failures[:1] == ([] if failure is None else [failure])


def test_the_last_position_is_that_of_the_newest_frame_that_has_one() -> None:
    def position(latitude: float, longitude: float) -> bytes:
        return struct.pack("<ii", round(latitude * 1e7), round(longitude * 1e7))

    rows = [
        (START_US + 2, 0x09F80103, position(-33.5, 151.25)),
        (START_US + 1, 0x09F80103, position(1, 2)),
        (START_US + 3, 0x09F80203, position(8, 9)),  # another PGN
    ]
    found = last_position({(LINEAGE, seq): row for seq, row in enumerate(rows, start=1)})
    assert found is not None
    assert str(found) == "33.50000 S, 151.25000 E"
    assert found.time_us == START_US + 2
    assert last_position({}) is None


def test_the_lpj_has_every_frame_under_its_seq(tmp_path: Path) -> None:
    rows = {seq: (START_US + seq, 0x09F80203, bytes([seq % 256] * 8)) for seq in (*range(1, 50), *range(200, 300))}
    size = write_lpj({(LINEAGE, seq): row for seq, row in rows.items()}, tmp_path / "same.lpj")
    found = read_held(tmp_path / "same.lpj")
    assert {seq: row for (_, seq), row in found.frames.items()} == rows
    assert size == (tmp_path / "same.lpj").stat().st_size


def test_long_lists_are_told_by_a_few_lines_with_both_ends() -> None:
    assert _some(["only"]) == ["only"]
    chosen = _some([str(number) for number in range(100)])
    assert (chosen[0], chosen[-1], len(chosen)) == ("0", "99", 6)
