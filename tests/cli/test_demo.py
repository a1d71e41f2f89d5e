"""`tidelog demo` runs to its end, leaves nothing behind, and notices what it promises to notice."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.blocks.crafted import LINEAGE
from tests.cli.commands import Tidelog
from tests.patience import block_until, patient
from tests.pipeline.folders import put, small_store
from tidelog.blocks.frames import encode_frames
from tidelog.cli.demo.answers import WIND_PGN, BoatPosition, max_wind_in_bytes, wrong_winds
from tidelog.cli.demo.link import HOST, DemoLink
from tidelog.cli.demo.parties import BOATS, NODES, DemoPartyFailed, Parties
from tidelog.cli.demo.run import tell
from tidelog.cli.demo.sea import check_backfill
from tidelog.cli.demo.sight import Sight, Watch
from tidelog.cli.demo.story import QUICK, Stage, Story, some
from tidelog.cli.demo.tables import check_audit
from tidelog.edge.sources.voyage import Voyage
from tidelog.pipeline import engine as engine_module
from tidelog.pipeline.audit import AuditResult, Difference
from tidelog.pipeline.jobs.frames_tasks import FramesOrder, write_pieces
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.sources.logs import Piece
from tidelog.pipeline.tables import open_table
from tidelog.pipeline.tables.layouts import FRAMES_LAYOUT
from tidelog.pipeline.tables.table import OffsetRange, RangeFiles
from tidelog.units import US_PER_S

DEADLINE_S = 10.0
UP_S = 240.0
INTERRUPTED = 130
HOUR_US = 3_600 * US_PER_S


def processes_of(folder: Path, *, but: int | None = None) -> dict[int, str]:
    """Processes that were given this folder, on their command line or as the place for temporary files."""
    found = {}
    for one in Path("/proc").glob("[0-9]*"):
        try:
            line, environment = (one / "cmdline").read_bytes(), (one / "environ").read_bytes()
        except OSError:
            continue  # it has just ended
        if int(one.name) != but and os.fsencode(folder) in line + environment:
            found[int(one.name)] = line.replace(b"\0", b" ").decode(errors="replace")
    return found


def start(*arguments: str, folder: Path, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "TMPDIR": str(folder), "TIDELOG_REPLICATION_TARGET": "cloud.example.com:9443"}
    command = [sys.executable, *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=folder, **options
    )


@pytest.mark.slow
def test_the_demo_holds_what_it_promises_and_leaves_nothing_behind(tmp_path: Path) -> None:
    # A setting of a real boat is in the environment, which the demo must not take up.
    with start("-m", "tidelog.cli", "demo", "--seed", "7", "--json", "--quick", folder=tmp_path) as process:
        out, err = process.communicate(timeout=patient(540))
    assert process.returncode == 0, out + err
    assert err == ""
    story = json.loads(out)
    assert story["failures"] == []
    assert story["seed"] == 7
    assert story["audit_equal"]
    assert story["log_frames"] == story["table_frames"]
    assert story["log_frames"] == sum(story["journal_frames"].values()) + story["saved_by_live"]
    assert story["cursor_after_node_kill"] > story["cursor_before_node_kill"] > 0
    assert story["node_after"] != story["node_killed"]
    assert story["missing_by_turn"][0] == story["hole_seqs"] > 100 * QUICK.link_down_s
    assert story["missing_by_turn"][-1] == 0
    assert story["seqs_void"] > 0
    assert story["signals"] > story["table_frames"]
    assert {row["channel"] for row in story["max_wind"]} == set(story["positions"]) == set(BOATS)
    assert [one.name for one in tmp_path.iterdir()] == ["demo-report.html"]
    assert processes_of(tmp_path) == {}


@pytest.mark.slow
def test_a_demo_that_is_told_to_end_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    with start("-m", "tidelog.cli", "demo", folder=tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "sails along" in line:
                break
        assert len(processes_of(tmp_path, but=process.pid)) == len(NODES) + len(BOATS)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=patient(UP_S))
    assert process.returncode == INTERRUPTED, err
    assert processes_of(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


ENGINE_SCRIPT = """
import signal, sys, time
from pathlib import Path
from tidelog.cli.demo.engine import DemoEngine
signal.signal(signal.SIGTERM, signal.default_int_handler)
engine = DemoEngine(Path(sys.argv[1]))
try:
    print(engine.session().range(10).repartition(2).mapInArrow(lambda rows: rows, "id bigint").count(), flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    engine.close()
    print("interrupted", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["starting", "running"])
def test_no_java_is_left_when_the_engine_is_interrupted(tmp_path: Path, moment: str) -> None:
    def others() -> list[str]:
        return list(processes_of(tmp_path, but=process.pid).values())

    with start("-c", ENGINE_SCRIPT, str(tmp_path / "spark"), folder=tmp_path) as process:
        try:
            assert process.stdout is not None
            if moment == "starting":
                block_until(lambda: any("java" in line for line in others()), "Java is started", UP_S)
            else:
                assert process.stdout.readline() == "10\n"
                assert any("pyspark" in line for line in others())
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "interrupted\n"
            assert [line for line in others() if "java" in line] == []
            block_until(lambda: others() == [], "its workers have gone", UP_S)
        finally:
            process.kill()


# --- before anything starts ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [("java", "Spark needs Java 17 or newer and found none"), ("pyspark", "pyspark not installed; pip install")],
)
def test_without_spark_or_java_the_demo_says_so_and_starts_nothing(
    tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str, sentence: str
) -> None:
    if missing == "java":
        monkeypatch.setattr(engine_module, "_javas", lambda: [])
    else:
        found = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else found(name))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = tidelog("demo", code=2)
    assert result.err.startswith("tidelog: the pipeline cannot start: ")
    assert sentence in result.err
    assert result.err.count("\n") == 1
    assert result.out == ""
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


def port_of_nobody() -> int:
    with socket.create_server((HOST, 0)) as nobody:
        return int(nobody.getsockname()[1])


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


@pytest.fixture
def link(echo: Echo) -> Iterator[DemoLink]:
    made = DemoLink([echo.port])
    yield made
    made.close()


def dial(link: DemoLink) -> socket.socket:
    return socket.create_connection((HOST, link.port), timeout=patient(DEADLINE_S))


def test_link_carries_bytes_both_ways(link: DemoLink) -> None:
    with dial(link) as boat:
        boat.sendall(b"hello")
        assert boat.recv(100) == b"hello"


def test_cut_link_ends_connections_and_takes_no_new_ones_until_it_is_restored(link: DemoLink) -> None:
    with dial(link) as before:
        before.sendall(b"x")
        assert before.recv(1) == b"x"
        link.cut()
        assert before.recv(1) == b""
    with dial(link) as during:
        assert during.recv(1) == b""
    link.restore()
    with dial(link) as after:
        after.sendall(b"y")
        assert after.recv(1) == b"y"


def test_link_goes_to_the_next_node_when_one_is_down(link: DemoLink, echo: Echo) -> None:
    link.target_ports = (port_of_nobody(), echo.port)
    with dial(link) as boat:
        boat.sendall(b"z")
        assert boat.recv(1) == b"z"


def test_link_closes_what_nobody_answers(link: DemoLink) -> None:
    link.target_ports = (port_of_nobody(),)
    with dial(link) as boat:
        assert boat.recv(1) == b""


# --- the parties ---------------------------------------------------------------------------------


@pytest.fixture
def parties(tmp_path: Path) -> Iterator[Parties]:
    made = Parties(tmp_path)
    yield made
    made.close()


def test_a_process_that_ends_by_itself_is_told_with_its_last_words(parties: Parties) -> None:
    with pytest.raises(DemoPartyFailed, match=r"n1 ended by itself: .*-tls-ca"):
        parties.start_nodes("n1")  # there are no certificates yet


def test_a_demo_that_cannot_go_on_fails_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "n1-data").write_text("in the way")
    story = Story(seed=1)
    tell(story, tmp_path, Console(quiet=True), sizes=QUICK, report=tmp_path / "report.html")
    assert [failure.partition(":")[0] for failure in story.failures] == ["n1 ended by itself"]
    assert "n1-data" in story.failures[0]
    assert processes_of(tmp_path) == {}
    assert not (tmp_path / "report.html").exists()


class Answers:
    """Stands for the parties: says what it was told to say."""

    def __init__(self, *, cursor: int) -> None:
        self.cursor = cursor
        self.acked = 0

    def ask_nodes(self, path: str) -> dict[str, Any] | None:
        assert path == "/instances/boat-001/status"
        holes = [{"start": 5, "end": 8}]
        return {"cursor": self.cursor, "frames_by_live": 3, "holes": holes, "void": [], "session": 1}

    def ask_boat(self, boat: str) -> dict[str, Any] | None:
        return {
            "local_head_seq": 20,
            "durable_head_seq": 15,
            "void": [],
            "connected": True,
            "cloud_cursor": self.acked,
        }

    def wait(self, condition: Callable[[], bool], *, what: str, deadline_s: float) -> None:
        assert condition(), what


@pytest.mark.parametrize(("cursor", "acked"), [(11, 0), (10, 11)], ids=["seen in the log", "acked"])
def test_a_cursor_that_goes_back_is_noticed_for_good(cursor: int, acked: int) -> None:
    answers = Answers(cursor=cursor)
    answers.acked = acked
    watch = Watch(answers, "boat-001")
    assert watch.look().cursor == cursor
    assert watch.sight.missing == 3
    assert watch.cursor_went_back == ""
    answers.cursor = 10
    watch.look()
    answers.cursor = 12
    watch.wait(lambda sight: sight.cursor == 12, what="the cursor", deadline_s=DEADLINE_S)
    assert watch.cursor_went_back == "the cursor of boat-001 went back from 11 to 10"


# --- what the demo would notice ------------------------------------------------------------------


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
    check_backfill(story, [Sight(holes=holes) for holes in turns])
    assert story.failures[:1] == ([] if failure is None else [failure])


def audited() -> AuditResult:
    """The answers for two boats with 100 and 50 frames, of which Live had saved 4."""
    return AuditResult(
        frames={
            "log": 154,
            "frames": 154,
            "journal of boat-001": 100,
            "journal of boat-002": 50,
            "replica on n1": 308,
            "replica on n2": 154,
            "replica on n3": 154,
        },
        not_shipped={"boat-001": 0, "boat-002": 0},
        only_in_log={"boat-001": 4, "boat-002": 0},
    )


def told(parties: Parties, result: AuditResult) -> list[str]:
    story = Story(seed=1, saved_by_live=4, table_frames=154)
    check_audit(Stage(story, parties, Console(quiet=True), QUICK), result)
    return story.failures


def with_frames(**frames: int) -> AuditResult:
    result = audited()
    result.frames |= {name.replace("_", " "): count for name, count in frames.items()}
    return result


def test_an_audit_that_finds_all_equal_is_no_failure(parties: Parties) -> None:
    assert told(parties, audited()) == []


def test_whatever_the_audit_finds_is_a_failure(parties: Parties) -> None:
    missing = audited()
    one = Difference(
        channel="boat-001", lineage="ab", what="missing", side="frames", against="log", first=7, last=9, frames=3
    )
    missing.differences = [one] * 7
    assert told(parties, missing) == [str(one)] * 5 + ["and 2 more differences"]
    assert told(parties, with_frames(log=153)) == ["the table has not as many frames as the log"]
    assert told(parties, with_frames(replica_on_n3=150)) == ["n3 holds 150 frames of 154"]
    late = audited()
    late.not_shipped["boat-002"] = 2
    assert told(parties, late) == ["2 frames of boat-002 were not shipped"]
    foreign = audited()
    foreign.only_in_log["boat-002"] = 1
    assert told(parties, foreign) == ["the log has 1 frames that boat-002 has not; Live saved 0"]


def test_an_empty_journal_is_a_failure(parties: Parties) -> None:
    empty = audited()
    empty.frames["journal of boat-002"] = 0
    assert told(parties, empty) == ["a journal is empty"]


# --- answers -------------------------------------------------------------------------------------


def frames_table(folder: Path, channel: str, voyage: Voyage, *, seconds: int) -> dict[int, float]:
    """The table `frames` of a voyage; returns its strongest wind by hour."""
    frames = voyage.frames(voyage.start_us, voyage.start_us + seconds * US_PER_S)
    store = small_store(folder / "log")
    put(store, channel, [encode_frames(frames, base_seq=1, producer=LINEAGE)])
    store.close(voyage.start_us)
    address = LogsAddress(path=str(folder / "log"))
    (ends,) = address.open().channels(("*",))
    here: dict[str, Any] = {"channel": channel, "channel_id": ends.channel_id, "leader_epoch": ends.leader_epoch}
    piece = Piece(**here, start=0, end=ends.committed_end)
    covered = OffsetRange(**here, start=0, end=ends.committed_end)
    table = open_table(folder / "tables", FRAMES_LAYOUT)
    table.create()
    files = [
        one.file for one in write_pieces(FramesOrder(address=address, pieces=(piece,), folder=str(table.folder))).files
    ]
    table.commit_append("demo", [RangeFiles(range=covered, files=tuple(files))])
    winds: dict[int, float] = {}
    for time_us, can_id, payload in frames.rows():
        if can_id >> 8 & 0x3FFFF == WIND_PGN:
            hour, speed = time_us // HOUR_US, int.from_bytes(payload[1:3], "little") / 100
            winds[hour] = max(winds.get(hour, 0.0), speed)
    return winds


def test_the_strongest_wind_is_read_from_the_bytes_hour_by_hour(tmp_path: Path) -> None:
    voyage = Voyage(seed=3, start_us=HOUR_US * 490_000 - 5 * US_PER_S)
    expected = frames_table(tmp_path, "boat-001", voyage, seconds=10)
    assert len(expected) == 2
    found = max_wind_in_bytes(tmp_path / "tables")
    assert found == pytest.approx({("boat-001", hour): wind for hour, wind in expected.items()})


def test_an_answer_that_is_not_what_the_sensor_said_is_a_failure() -> None:
    measured = {("boat-001", 1): 9.31, ("boat-002", 1): 7.0}
    assert wrong_winds({("boat-001", 1): 9.312, ("boat-002", 1): 7.0}, measured) == []
    assert len(wrong_winds({("boat-001", 1): 9.32, ("boat-002", 1): 7.0}, measured)) == 1
    (absent,) = wrong_winds({("boat-001", 1): 9.31}, measured)
    assert absent == "the strongest wind of boat-002 in hour 1 is None by SQL, 7.0 in the frames"
    assert len(wrong_winds(measured, {})) == 2


def test_a_position_is_told_as_sailors_do() -> None:
    assert str(BoatPosition(time_us=0, latitude=-33.5, longitude=151.25)) == "33.50000 S, 151.25000 E"
    assert str(BoatPosition(time_us=0, latitude=1.0, longitude=-2.0)) == "1.00000 N, 2.00000 W"


def test_long_lists_are_told_by_a_few_lines_with_both_ends() -> None:
    assert some(["only"]) == ["only"]
    chosen = some([str(number) for number in range(100)])
    assert (chosen[0], chosen[-1], len(chosen)) == ("0", "99", 6)
