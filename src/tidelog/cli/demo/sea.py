"""The demo at sea: boats stream to three nodes, the link breaks, the boat and then the leading node are killed.

Each function is a step of the story. It waits for what it tells, every wait has a deadline, and what does not hold
goes into the story's failures.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tidelog.cli.demo.parties import NODES, DemoPartyFailed, Parties
from tidelog.cli.demo.sight import Sight, Watch
from tidelog.cli.demo.story import STEP_S_MAX, Stage, Story, seqs_in_words, some
from tidelog.compat.lpj import LpjWriter
from tidelog.edge.journal.journal import open_journal
from tidelog.edge.sources.voyage import Voyage
from tidelog.storage.log.writer import wall_clock_us
from tidelog.storage.os_disk import OsDisk
from tidelog.units import US_PER_S

_UNSYNCED_S: Final = 0.25
"""The boat is killed when so much of its bus is in its memory and in the cluster, and on no disk of its own."""


def make_certificates(stage: Stage) -> None:
    with stage.console.status("making keys ..."):
        stage.parties.make_certificates()
    stage.tell(
        "[bold]tidelog ca[/]: an authority for boats, one for nodes, a certificate each for",
        f"{', '.join((*stage.parties.boats, *NODES))} and an operator",
    )


# --- sailing -------------------------------------------------------------------------------------


def sail(stage: Stage) -> None:
    watch, story = stage.first, stage.story
    behind: list[int] = []
    lines: list[str] = []
    with stage.console.status("three nodes found a cluster ...") as status:
        stage.parties.start_nodes(*NODES)
        stage.tell(f"a cluster of {', '.join(NODES)}; acked is what every replica in sync has on disk")
        status.update("the boats leave ...")
        stage.parties.start_boats({boat: simulated(stage, boat) for boat in stage.parties.boats})
        for each in stage.watches.values():
            each.wait(lambda sight: sight.cursor > 0, what="the first ack", deadline_s=STEP_S_MAX)

        def note(sight: Sight) -> None:
            behind.append(max(0, sight.head - sight.cursor))
            lines.append(f"{watch.boat}   head {sight.head:>6,}   cursor {sight.cursor:>6,}")
            status.update(str(sight))

        goal = watch.look().head + int(stage.sizes.live_s * stage.sizes.frames_per_s)
        watch.wait(lambda sight: sight.cursor >= goal, what="Live", deadline_s=STEP_S_MAX, each=note)
    story.live_behind_median, story.live_behind_max = statistics.median(behind), max(behind)
    stage.tell(*some(lines))
    stage.tell(
        f"{stage.sizes.frames_per_s} frames a second over mTLS; what is acked is {story.live_behind_median:.0f} frames",
        f"behind the bus (median; {story.live_behind_max} at most)",
    )
    for other in stage.others:
        stage.tell(f"{other.boat} sails along: cursor {other.look().cursor:,}")


def simulated(stage: Stage, boat: str) -> list[str]:
    metered = ["-replication-backfill-bytes-per-s", str(stage.sizes.backfill_bytes_per_s)]
    return ["-simulate", str(stage.seed(boat)), "-simulate-rate", str(stage.frames_per_s(boat)), *metered]


# --- the link ------------------------------------------------------------------------------------


def cut_the_link(stage: Stage) -> None:
    watch = stage.first
    seen: list[Sight] = []
    with stage.console.status("the link is down, the boats record on ...") as status:

        def note(sight: Sight) -> None:
            status.update(str(sight))

        def note_holes(sight: Sight) -> None:
            if not seen or seen[-1].holes != sight.holes:
                seen.append(sight)
            note(sight)

        drop_link(stage, note)
        # Some frames by Live, so that the next hole is one of its own.
        by_live = watch.look().frames_by_live
        watch.wait(lambda sight: sight.frames_by_live > by_live, what="Live after the cut", deadline_s=STEP_S_MAX)
        note_holes(drop_link(stage, note))
        watch.wait(lambda sight: not sight.missing, what="Backfill", deadline_s=STEP_S_MAX, each=note_holes)
    tell_backfill(stage, seen)


def drop_link(stage: Stage, note: Callable[[Sight], None]) -> Sight:
    """Cut the link for a while and wait until the boat has dialed again; what was seen right after the Handshake."""
    watch = stage.first
    stage.parties.cut_links()
    cut = watch.wait(lambda sight: not sight.connected, what="the broken link", deadline_s=STEP_S_MAX)
    goal = cut.head + int(stage.sizes.link_down_s * stage.sizes.frames_per_s)
    watch.wait(lambda sight: sight.head >= goal, what="recording without a link", deadline_s=STEP_S_MAX, each=note)
    stage.parties.restore_links()
    back = watch.wait(
        lambda sight: sight.session > cut.session, what="the next Handshake", deadline_s=STEP_S_MAX, each=note
    )
    newest = back.holes[-1] if back.holes else range(back.cursor, back.cursor)
    stage.tell(
        f"[bold red]down[/] at seq {newest.start:,}, [bold green]back[/] at {newest.stop:,}: Live goes on there at once"
    )
    return back


def tell_backfill(stage: Stage, seen: list[Sight]) -> None:
    """The holes as they shrank. The newest must be gone before anything of an older one comes."""
    story, first = stage.story, seen[0].holes
    story.missing_by_turn = [sight.missing for sight in seen]
    story.hole_seqs = sum(map(len, first))
    check_backfill(story, seen)
    stage.tell("what is missing comes by Backfill, the newest hole first:")
    stage.tell(*some([_holes_in_words(sight) for sight in seen]))


def check_backfill(story: Story, seen: list[Sight]) -> None:
    first = seen[0].holes
    story.check(bool(first), "there was no hole after the link had dropped")
    for sight in seen:
        older = zip(sight.holes[:-1], first, strict=False)
        story.check(all(now == before for now, before in older), "Backfill did not begin with the newest hole")


def _holes_in_words(sight: Sight) -> str:
    return f"missing {sight.missing:>6,}   " + ("   ".join(map(seqs_in_words, sight.holes)) or "nothing")


# --- kills ---------------------------------------------------------------------------------------


def kill_the_boat(stage: Stage) -> None:
    story, watch = stage.story, stage.first
    with stage.console.status("waiting for the middle of a second ...") as status:
        # A good part of a second after the last sync: frames are in memory that no disk of the boat has seen.
        unsynced_min = int(_UNSYNCED_S * stage.sizes.frames_per_s)
        at_kill = watch.wait(
            lambda sight: sight.cursor - sight.durable_head > unsynced_min,
            what="frames in memory only",
            deadline_s=STEP_S_MAX,
        )
        stage.parties.kill(watch.boat)
        stage.parties.start_boats({watch.boat: simulated(stage, watch.boat)})
        after = watch.wait(
            lambda sight: sight.session > at_kill.session and bool(sight.boat_void) and bool(sight.void),
            what="the Handshake after the kill",
            deadline_s=STEP_S_MAX,
            each=lambda sight: status.update(str(sight)),
        )
    unsynced, void = after.boat_void[-1], after.void[-1]
    story.durable_at_boat_kill = unsynced.start - 1
    story.saved_by_live = void.start - unsynced.start
    story.seqs_void = len(void)
    story.check(story.saved_by_live > 0, "Live had brought nothing that the boat lost")
    story.check(after.head + 1 >= void.stop, "a void seq was given to a frame")
    stage.tell(
        f"[bold red]{watch.boat}[/] killed; its disk ends at seq {story.durable_at_boat_kill:,}",
        f"the next {story.saved_by_live:,} were in its memory only: lost on board, saved ashore by Live",
        f"seqs {seqs_in_words(void)} are [bold]void[/]: set aside, on no disk, never used again",
    )


def kill_the_leader(stage: Stage) -> None:
    story, watch, parties = stage.story, stage.first, stage.parties
    with stage.console.status("looking who leads ...") as status:
        wait_in_sync(stage)
        goal = watch.look().head + stage.sizes.frames_per_s
        watch.wait(lambda sight: sight.cursor >= goal, what="Live again", deadline_s=STEP_S_MAX)
        victim = _leader(parties, watch)
        if victim is None:
            raise DemoPartyFailed(f"nobody leads the channel of {watch.boat}")
        parties.kill(victim)
        began_s = time.monotonic()
        status.update(f"{victim} is dead, the boats record on ...")
        acked = watch.look().acked
        after = watch.wait(
            lambda sight: sight.acked > acked and _leader(parties, watch) not in (None, victim),
            what="the next ack",
            deadline_s=STEP_S_MAX,
            each=lambda sight: status.update(str(sight)),
        )
        story.ack_gap_s = round(time.monotonic() - began_s, 2)
        story.node_killed, story.node_after = victim, str(_leader(parties, watch))
        story.cursor_before_node_kill, story.cursor_after_node_kill = acked, after.acked
        story.check(after.cursor >= acked, f"{acked - after.cursor} acked frames are gone with {victim}")
        stage.tell(
            f"[bold red]{victim}[/] led {watch.boat} and is killed at cursor {acked:,}",
            f"{story.node_after} leads, and the next ack came after [bold]{story.ack_gap_s:.1f} s[/]",
            f"the cursor goes on from there: {after.acked:,}. Nothing that was acked is missing",
        )
        status.update(f"{victim} comes back ...")
        began_s = time.monotonic()
        parties.start_nodes(victim)
        wait_in_sync(stage)
        story.isr_full_s = round(time.monotonic() - began_s, 1)
    stage.tell(f"[bold green]{victim}[/] is back, and in sync again {story.isr_full_s:.0f} s after its start")


def _leader(parties: Parties, watch: Watch) -> str | None:
    return parties.channel(watch.boat).get("leader")


def wait_in_sync(stage: Stage) -> None:
    """Until every replica of every boat's channel is in sync."""
    parties = stage.parties

    def all_in_sync() -> bool:
        stage.first.look()  # so that a cursor that goes back is noticed meanwhile
        return all(len(parties.channel(boat).get("isr", ())) == len(NODES) for boat in parties.boats)

    parties.wait(all_in_sync, what="three replicas in sync of every channel", deadline_s=STEP_S_MAX)


# --- mooring -------------------------------------------------------------------------------------


def moor(stage: Stage) -> None:
    """The boats sail a last leg from a recording: when it ends, each stops once everything of it is acked."""
    parties = stage.parties
    with stage.console.status("the last leg ...") as status:
        parties.stop(*parties.boats)
        legs: Mapping[str, Path] = {boat: _write_last_leg(stage, boat) for boat in parties.boats}
        parties.start_boats({boat: ["-replay", str(path)] for boat, path in legs.items()})
        for boat, watch in stage.watches.items():

            def note(watch: Watch = watch) -> None:
                status.update(f"{watch.boat}   {watch.look()}")

            parties.wait_ended(boat, deadline_s=STEP_S_MAX, each=note)
        for watch in stage.watches.values():
            sight = watch.look()
            stage.story.check(not sight.missing, f"{sight.missing} seqs of {watch.boat} are still missing")
            seal(parties.journal(watch.boat))
    stage.tell(f"{' and '.join(parties.boats)} have moored; everything they recorded is acked")


def seal(journal: Path) -> None:
    """Turn the small blocks of every second into large compressed ones, as a journal does once a minute."""
    now_us = wall_clock_us()
    opened = open_journal(OsDisk(journal.parent), journal.name, now_us=now_us, new_lineage=lambda: uuid.uuid4().bytes)
    try:
        opened.seal_all(now_us)
    finally:
        opened.close(now_us)


def _write_last_leg(stage: Stage, boat: str) -> Path:
    path = stage.parties.folder / f"{boat}-last-leg.lpj"
    start_us = stage.last_leg_us[boat] = wall_clock_us()
    voyage = Voyage(seed=stage.seed(boat), start_us=start_us)
    end_us = start_us + stage.sizes.last_leg_s * US_PER_S
    with LpjWriter(path) as writer:
        writer.append(voyage.frames(start_us, end_us, frames_per_s=stage.frames_per_s(boat)), first_seq=1)
    return path
