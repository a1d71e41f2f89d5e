"""The uplink in the simulator: random runs, and proof that the simulator would notice broken promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tidelog.blocks.block import MadeBlock
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.control import LineageOpened, RangeLost, RangeVoid, encode_control
from tidelog.blocks.decode import decode_block_frames
from tidelog.blocks.header import BlockLimits
from tidelog.cli.sim_commands import run_seeds
from tidelog.cluster.boats import channel as uplink_channel
from tidelog.cluster.boats.channel import UplinkChannel
from tidelog.cluster.boats.runs import RunJudge
from tidelog.core.ranges import RangeSet
from tidelog.core.uplink import receiver as receiver_module
from tidelog.core.uplink import tenure as tenure_module
from tidelog.core.uplink.backoff import DialBackoff
from tidelog.core.uplink.budget import TokenBucket
from tidelog.core.uplink.facts import DeclareLost, apply_fact
from tidelog.core.uplink.fold import ChannelFold, LineageFold
from tidelog.core.uplink.lplex_requests import LplexRequests
from tidelog.core.uplink.messages import Hello
from tidelog.core.uplink.receiver import AppendBlock, UplinkReceiver
from tidelog.core.uplink.sender import UplinkSender
from tidelog.core.uplink.tenure import Tenure
from tidelog.edge.journal.declared import Declared
from tidelog.edge.journal.journal import META_NAME, Journal
from tidelog.edge.journal.re_recording import ReRecording
from tidelog.edge.journal.ring import Ring
from tidelog.edge.uplink.uplink import BoatUplink
from tidelog.errors import BadBlock, SessionFenced
from tidelog.sim.disk import SimDisk
from tidelog.sim.network import Scheduler
from tidelog.sim.uplink.model import UplinkBroken, UplinkModel, UplinkViolation
from tidelog.sim.uplink.world import SHORT_MS, run_uplink_world
from tidelog.storage.log.log import Log
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.recovery import open_log

FAST_SEEDS = 300
SLOW_SEEDS = 2_000
SLOW_EVENTS = 10_000_000
MUTATION_SEEDS = 60


def check_lane(function: str, first: int, count: int) -> int:
    """Run these seeds on all cores; returns how many events there were."""
    result = run_seeds("tidelog.sim.uplink.world", function, first=first, count=count)
    assert result["violations"] == [], "replay with: tidelog sim uplink --seed N"
    assert result["never"] == [], "the run proves less than it says"
    assert result["seeds"] == count
    assert result["simulated_hours"] > count / 40
    return int(result["events"])


@pytest.mark.timeout(600)
def test_random_runs_of_boats_and_their_cloud_keep_every_promise() -> None:
    assert check_lane("run_short_uplink_seeds", 0, FAST_SEEDS) > 1_000 * FAST_SEEDS


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_many_random_runs_of_boats_and_their_cloud_keep_every_promise() -> None:
    assert check_lane("run_uplink_seeds", 10_000, SLOW_SEEDS) >= SLOW_EVENTS


def test_a_call_that_has_nothing_to_do_any_more_is_no_event() -> None:
    scheduler = Scheduler()
    scheduler.after(5, lambda: None)
    scheduler.after(6, lambda: False)
    scheduler.run_until(10)
    assert scheduler.events == 1


def test_a_seed_replays_the_same_run() -> None:
    assert run_uplink_world(7, duration_ms=SHORT_MS) == run_uplink_world(7, duration_ms=SHORT_MS)


def test_a_violation_names_its_seed_and_how_to_see_it_again() -> None:
    violation = UplinkViolation(12, "a frame is gone")
    assert str(violation) == "seed 12: a frame is gone\nreplay: tidelog sim uplink --seed 12"


def test_what_was_declared_before_a_backup_was_put_back_may_be_committed_later() -> None:
    model, lineage, declared = UplinkModel(Counter()), bytes(16), Declared()
    declared.lost.add(range(2, 4))
    declared.void.add(range(4, 5))
    for timeline in (0, 1):
        for seq in range(1, 6):
            model.issue(lineage, seq, (seq, 1, bytes([timeline])), timeline)
        model.backup_put_back(lineage, declared)
    log = open_log(SimDisk(Random(0)), "log", now_us=0, options=LogOptions(reserve_bytes=0))

    def commit(record: RangeLost | RangeVoid) -> None:
        log.append(encode_control([record], time_us=0), epoch=1, now_us=0)
        model.take_committed(log.read(log.log_end - 1), log.log_end)

    commit(RangeLost(lineage=lineage.hex(), start=2, end=4, reason="the boat no longer has it"))
    commit(RangeVoid(lineage=lineage.hex(), start=4, end=5))
    with pytest.raises(UplinkBroken, match="seq 5 of lineage 00000000 is called lost"):
        commit(RangeLost(lineage=lineage.hex(), start=5, end=6, reason="the boat no longer has it"))


# --- the simulator proves itself: break the code on purpose, and it must notice -----------------------


def first_violation(seeds: int = MUTATION_SEEDS, *, first: int = 0) -> str:
    for seed in range(first, first + seeds):
        try:
            run_uplink_world(seed, duration_ms=SHORT_MS)
        except UplinkViolation as violation:
            return violation.problem
    return ""


def test_an_ack_before_the_commit_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UplinkReceiver, "cursor", property(lambda core: core._current(core._appended).cursor))
    assert "9: the boat was told" in first_violation()


def test_a_commit_without_a_sync_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(log: Log, now_us: int) -> None:
        log.flush(now_us)
        log.note_durable(log.log_end)

    monkeypatch.setattr(Log, "commit", commit)
    assert first_violation()


def test_a_cursor_over_a_hole_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LineageFold, "cursor", property(lambda fold: fold.held.end - 1 if fold.held else 0))
    assert "8: the cursor" in first_violation()


def test_ignored_windows_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    take: Callable[..., Any] = UplinkReceiver._take

    def take_whole(core: UplinkReceiver[Any], *arguments: Any) -> list[Any]:
        effects = take(core, *arguments)
        return [AppendBlock(item.block, (), item.via) if isinstance(item, AppendBlock) else item for item in effects]

    monkeypatch.setattr(UplinkReceiver, "_take", take_whole)
    assert "6: seq" in first_violation()


def test_a_snapshot_that_forgets_lost_and_void_ranges_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    to_state: Callable[[LineageFold], dict[str, Any]] = LineageFold.to_state
    monkeypatch.setattr(LineageFold, "to_state", lambda fold: to_state(fold) | {"lost": [], "void": []})
    assert first_violation()


def test_a_snapshot_of_what_is_committed_only_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was on its way lies before the snapshot in the log and would be forgotten."""
    snapshot: Callable[..., Any] = UplinkReceiver.snapshot

    def committed_only(core: UplinkReceiver[Any]) -> dict[str, Any]:
        snapshot(core)
        return core.fold.to_state()

    monkeypatch.setattr(UplinkReceiver, "snapshot", committed_only)
    assert first_violation(200, first=45).startswith(("8: the cursor", "F1: the fold"))


def test_a_trim_without_a_snapshot_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uplink_channel, "FoldSnapshot", type("Nothing", (), {}))
    monkeypatch.setattr(UplinkChannel, "snapshot", _empty_snapshot)
    assert first_violation()


def _empty_snapshot(channel: UplinkChannel, now_ms: int) -> uplink_channel.LogAppend:
    channel.receiver.snapshot()
    record = LineageOpened(lineage="00" * 16, reason="no snapshot at all")
    return uplink_channel.LogAppend(encode_control([record], time_us=1000 * now_ms))


def test_a_seq_used_again_after_a_power_cut_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    save: Callable[..., None] = Journal._save_meta

    def save_once(journal: Journal, **arguments: Any) -> None:
        if not journal.disk.exists(f"{journal.folder}/{META_NAME}"):
            save(journal, **arguments)

    monkeypatch.setattr(Journal, "_save_meta", save_once)
    assert first_violation()


def test_a_session_that_is_not_fenced_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def any_session(core: UplinkReceiver[Any], session: int) -> None:
        if core._bucket is None:
            raise SessionFenced(session=session, newest=core.session)

    monkeypatch.setattr(UplinkReceiver, "check_session", any_session)
    assert first_violation()


def test_void_seqs_that_are_not_told_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    hello: Callable[[BoatUplink], Hello] = BoatUplink._hello

    def silent(boat: BoatUplink) -> Hello:
        said = hello(boat)
        fields = {name: getattr(said, name) for name in Hello.__slots__}
        return Hello(**(fields | {"void": ()}))

    monkeypatch.setattr(BoatUplink, "_hello", silent)
    assert "8: seq" in first_violation()


def test_void_seqs_that_a_restart_forgets_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    to_meta: Callable[[Declared], dict[str, Any]] = Declared.to_meta
    monkeypatch.setattr(Declared, "to_meta", lambda declared: to_meta(declared) | {"void": []})
    assert first_violation(200)


def test_holes_that_are_told_in_the_handshake_only_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """U3: a gap inside Live, or holes beyond those that one answer names."""
    monkeypatch.setattr(UplinkSender, "_holes_are", _only_in_the_handshake(UplinkSender._holes_are))
    assert "14:" in first_violation()


def _only_in_the_handshake(holes_are: Callable[..., None]) -> Callable[..., None]:
    def told(core: UplinkSender, holes: tuple[range, ...]) -> None:
        if core._live_sent == 0 and core._backfill_answered == 0 and not core._backfill_flight.seqs():
            holes_are(core, holes)

    return told


def test_a_tail_that_is_never_flushed_for_backfill_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames in memory would be called gone."""

    def next_hole(boat: BoatUplink, now_ms: int, now_us: int) -> range | None:
        return boat.sender.next_backfill(now_ms=now_ms)

    monkeypatch.setattr(BoatUplink, "_next_hole", next_hole)
    assert "the boat did not lose it" in first_violation()


def test_a_rewound_journal_that_does_not_fork_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UplinkReceiver, "_is_rewound", lambda *_: False)
    assert first_violation(200)


def test_a_fork_judged_by_the_head_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup or a clone that recorded as many other frames since."""

    def by_head(core: UplinkReceiver[Any], hello: Hello) -> bool:
        assert hello.lineage is not None
        held = core._appended.lineages[hello.lineage].held
        return bool(held) and hello.head < held.end - 1

    monkeypatch.setattr(UplinkReceiver, "_is_rewound", by_head)
    assert first_violation(200)


def test_a_fork_that_takes_the_old_lineage_s_words_along_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Declared, "forked", lambda declared: declared)
    assert first_violation(400)


def test_a_pace_that_does_not_wait_for_answers_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """U4: a link that bunches what was sent would make an honest boat meet the rate limit."""
    monkeypatch.setattr(TokenBucket, "take_and_hold", TokenBucket.take)
    assert "rate_exceeded" in first_violation(200)


def test_a_deaf_cloud_that_is_not_noticed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-open on the way up."""
    monkeypatch.setattr(UplinkSender, "_note_statuses", lambda core, _: core._statuses_unheard.clear())
    assert "14:" in first_violation(200, first=40)


def test_lost_ranges_that_the_fold_ignores_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(fold: ChannelFold, fact: Any) -> None:
        if not isinstance(fact, DeclareLost):
            apply_fact(fold, fact)

    monkeypatch.setattr(receiver_module, "apply_fact", forgetful)
    assert first_violation(200)


def test_a_ring_that_gives_what_it_no_longer_has_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring too small for a burst: the newest frames under older numbers."""
    frames: Callable[[Ring, range], FrameColumns | None] = Ring.frames

    def some_frames(ring: Ring, seqs: range) -> FrameColumns | None:
        held = ring.seqs
        start = max(held.start, min(seqs.start, held.stop - len(seqs)))
        return frames(ring, range(start, start + len(seqs)))

    monkeypatch.setattr(Ring, "frames", some_frames)
    assert "6: seq" in first_violation(400)


def test_a_body_that_is_not_checked_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a hostile boat sends one."""

    def unchecked(block: MadeBlock, limits: BlockLimits) -> FrameColumns:
        try:
            return decode_block_frames(block, limits)
        except BadBlock:
            return FrameColumns.from_rows([])

    monkeypatch.setattr(uplink_channel, "decode_block_frames", unchecked)
    monkeypatch.setattr(uplink_channel, "check_block_frames", unchecked)
    assert first_violation()


def test_an_lplex_boat_that_starts_over_in_its_old_lineage_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    choose: Callable[..., bytes] = UplinkReceiver._choose_lineage

    def choose_the_known(core: UplinkReceiver[Any], hello: Hello, *arguments: Any) -> bytes:
        known = core._appended.current
        return known if known is not None and hello.lineage is None else choose(core, hello, *arguments)

    monkeypatch.setattr(UplinkReceiver, "_choose_lineage", choose_the_known)
    # Else the times of its Live frames show it.
    monkeypatch.setattr(RunJudge, "_comes_before_and_is_later", lambda *_: False)
    assert first_violation(200)


def test_an_lplex_boat_s_holes_that_are_lost_before_their_time_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """F5: what the boat has not flushed yet, what could not be told apart yet, and what it was not asked for yet is no
    less there."""
    done: Callable[..., list[Any]] = UplinkReceiver.backfill_done

    def at_once(core: UplinkReceiver[Any], session: int, *, now_ms: int) -> list[Any]:
        core._backfilled_through = 2**62
        core._holes_named = RangeSet([range(1, 2**62)])
        return done(core, session, now_ms=now_ms)

    monkeypatch.setattr(UplinkReceiver, "backfill_done", at_once)
    monkeypatch.setattr(receiver_module, "_PASSES_BEFORE_LOST", 1)
    monkeypatch.setattr(LplexRequests, "shows_what_is_lost", True)
    assert "F5:" in first_violation(200)


def test_frames_that_a_fork_leaves_behind_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReRecording, "pending", property(lambda carry: False))
    assert "JC1:" in first_violation(200)


def test_processes_that_take_a_session_from_each_other_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """UT2: as it was."""
    monkeypatch.setattr(Tenure, "admit", lambda tenure, boot_id, *, now_ms: None)
    assert "15: a second process took the session" in first_violation()


def test_a_boat_that_is_kept_from_its_own_session_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """UT1: a half-open link would keep it out for as long as the cloud believes in it."""
    admit = Tenure.admit
    monkeypatch.setattr(Tenure, "admit", lambda tenure, boot, *, now_ms: admit(tenure, boot + b"?", now_ms=now_ms))
    assert "15: a boat was told to wait" in first_violation()


def test_a_process_that_waits_for_a_dead_one_for_ever_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenure_module, "SILENT_MS", 10**9)
    assert "15: a boat was told to wait" in first_violation()


def test_a_back_off_that_does_not_grow_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """BO1: as it was after a session that had made progress."""
    monkeypatch.setattr(DialBackoff, "wait_ms", lambda backoff: int(500 + 500 * backoff._jitter()))
    assert "16: more than" in first_violation()


def test_a_back_off_that_every_session_starts_over_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """BO2: a cloud that welcomes and breaks."""
    acked = DialBackoff.session_was_acked
    monkeypatch.setattr(DialBackoff, "session_was_acked", lambda backoff, _: acked(backoff, 10**9))
    assert "16: more than" in first_violation(200)
