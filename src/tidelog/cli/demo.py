"""`tidelog demo`: a boat ships its bus to a cloud while the link breaks and both are killed. All on this machine.

Real processes, real certificates, in a temporary folder. The demo succeeds when everything it promises was seen to
hold; otherwise it says what did not, keeps the folder, and ends with exit code 1.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.markup import escape

from tidelog.cli.demo_compare import Held, last_position, log_bytes, read_held, seal, write_lpj
from tidelog.cli.demo_parties import NAME, Parties, PartyFailed, Sight
from tidelog.compat.lpj import LpjWriter
from tidelog.edge.voyage import Voyage
from tidelog.errors import LogError
from tidelog.storage.writer import wall_clock_us
from tidelog.units import US_PER_S, format_bytes, format_time_us

FRAMES_PER_S: Final = 600
LIVE_S: Final = 3
LINK_DOWN_S: Final = 1.8
"""Each time; then the boat's back-off decides when it dials again."""
LAST_LEG_S: Final = 7
BACKFILL_BYTES_PER_S: Final = 6_000
"""As on a metered link: at full speed such holes are gone before anybody could look."""
_STEP_S_MAX: Final = 60.0
_LINES_MAX: Final = 6
_DRAWN_COLUMNS: Final = 84
_POSITION_ERROR_MAX: Final = 1e-6


@dataclass(slots=True)
class Story:
    """What happened; the demo succeeds when `failures` is empty."""

    seed: int
    live_behind_median: float = 0.0
    live_behind_max: int = 0
    hole_seqs: int = 0
    missing_by_turn: list[int] = field(default_factory=list)
    cursor_before_cloud_kill: int = 0
    cursor_after_cloud_kill: int = 0
    durable_at_boat_kill: int = 0
    saved_by_live: int = 0
    seqs_void: int = 0
    journal_frames: int = 0
    cloud_frames: int = 0
    frames_not_equal: int = 0
    frames_twice: int = 0
    journal_bytes: int = 0
    cloud_bytes: int = 0
    lpj_bytes: int = 0
    last_leg_us: int = 0
    """When the last leg of the voyage began."""
    last_position: str = ""
    seconds: float = 0.0
    folder: str = ""
    """Where everything lies, if it was kept."""
    failures: list[str] = field(default_factory=list)

    def check(self, held: bool, what: str) -> None:
        if not held:
            self.failures.append(what)


@click.command()
@click.option("--seed", type=click.IntRange(min=0), default=None, help="Same voyage. Random by default.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@click.option("--keep", is_flag=True, help="Keep journal, cloud data and certificates, and say where they are.")
@click.option("--svg", type=click.Path(dir_okay=False), hidden=True, help="Draw the output into this file too.")
def demo(seed: int | None, as_json: bool, keep: bool, svg: str | None) -> None:
    """Ship a voyage to a cloud, cut the link, kill both ends, and compare every frame."""
    story = Story(seed=random.SystemRandom().randrange(1_000_000) if seed is None else seed)
    console = Console(quiet=as_json, highlight=False, record=svg is not None, width=_DRAWN_COLUMNS if svg else None)
    folder = Path(tempfile.mkdtemp(prefix="tidelog-demo-"))
    # So that whatever ends the demo ends its processes too.
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    try:
        _tell(story, folder, console)
        story.seconds = round(time.monotonic() - began, 1)
        keep = keep or bool(story.failures)
        story.folder = str(folder) if keep else ""
        _tell_the_end(story, console)
    finally:
        signal.signal(signal.SIGTERM, previous)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        click.echo(json.dumps(asdict(story)))
    if svg is not None:
        Path(svg).write_text(_drawing(console))
    sys.exit(1 if story.failures else 0)


def _tell(story: Story, folder: Path, console: Console) -> None:
    """Every step; one that cannot go on is a failure of the story, and the last one told."""
    parties = Parties(folder)
    try:
        _make_certificates(parties, console)
        _sail(story, parties, console)
        _cut_the_link(story, parties, console)
        _kill_the_boat(story, parties, console)
        _kill_the_cloud(story, parties, console)
        _moor(parties, console)
        _compare(story, parties, console)
    except (LogError, PartyFailed) as error:
        story.failures.append(str(error))
    finally:
        parties.close()
    story.check(not parties.cursor_went_back, parties.cursor_went_back)


def _simulated(seed: int) -> list[str]:
    metered = ["-replication-backfill-bytes-per-s", str(BACKFILL_BYTES_PER_S)]
    return ["-simulate", str(seed), "-simulate-rate", str(FRAMES_PER_S), *metered]


def _seqs(part: range) -> str:
    return f"{part.start:,} to {part.stop - 1:,}"


def _in_words(sight: Sight) -> str:
    return f"head {sight.head:,}   cursor {sight.cursor:,}   missing {sight.missing:,}"


def _some(lines: Sequence[str]) -> list[str]:
    """At most a few, evenly chosen, the first and the last among them."""
    if len(lines) <= _LINES_MAX:
        return list(lines)
    step = (len(lines) - 1) / (_LINES_MAX - 1)
    return [lines[round(number * step)] for number in range(_LINES_MAX)]


# --- the steps -----------------------------------------------------------------------------------


def _make_certificates(parties: Parties, console: Console) -> None:
    console.rule("[bold]1. Who is who")
    parties.make_certificates()
    console.print("  [bold]tidelog ca[/]: an authority for boats, one for nodes, a certificate for each end")


def _sail(story: Story, parties: Parties, console: Console) -> None:
    console.rule("[bold]2. A boat sails, the cloud follows")
    with console.status("starting cloud and boat ...") as status:
        parties.start_cloud()
        parties.start_boat(*_simulated(story.seed))
        parties.wait(lambda sight: sight.cursor > 0, what="the first ack of the cloud", deadline_s=_STEP_S_MAX)
        behind: list[int] = []
        lines: list[str] = []

        def note(sight: Sight) -> None:
            behind.append(max(0, sight.head - sight.cursor))
            lines.append(f"  head {sight.head:>6,}   cursor {sight.cursor:>6,}")
            status.update(_in_words(sight))

        goal = parties.sight.head + LIVE_S * FRAMES_PER_S
        parties.wait(lambda sight: sight.cursor >= goal, what="Live", deadline_s=_STEP_S_MAX, each=note)
    story.live_behind_median, story.live_behind_max = statistics.median(behind), max(behind)
    for line in _some(lines):
        console.print(line)
    console.print(
        f"  {FRAMES_PER_S} frames a second over mTLS; what the cloud has on its disk is\n"
        f"  {story.live_behind_median:.0f} frames behind the bus (median; {story.live_behind_max} at most)"
    )


def _cut_the_link(story: Story, parties: Parties, console: Console) -> None:
    console.rule("[bold]3. The link drops twice")
    seen: list[Sight] = []
    with console.status("the link is down, the boat records on ...") as status:

        def note(sight: Sight) -> None:
            status.update(_in_words(sight))

        def note_holes(sight: Sight) -> None:
            if not seen or seen[-1].holes != sight.holes:
                seen.append(sight)
            note(sight)

        _drop_link(parties, console, note)
        # Some frames by Live, so that the next hole is one of its own.
        said_end = parties.sight.held_end
        parties.wait(lambda sight: sight.held_end > said_end, what="Live after the cut", deadline_s=_STEP_S_MAX)
        note_holes(_drop_link(parties, console, note))
        parties.wait(
            lambda sight: not sight.missing, what="Backfill of the holes", deadline_s=_STEP_S_MAX, each=note_holes
        )
    _tell_backfill(story, seen, console)


def _drop_link(parties: Parties, console: Console, note: Callable[[Sight], None]) -> Sight:
    """Cut the link for a while and wait until the boat has dialed again; what was seen right after the Handshake."""
    parties.link.cut()
    cut = parties.wait(
        lambda sight: not sight.connected, what="the boat's word that the link is gone", deadline_s=_STEP_S_MAX
    )
    goal = cut.head + int(LINK_DOWN_S * FRAMES_PER_S)
    parties.wait(lambda sight: sight.head >= goal, what="recording without a link", deadline_s=_STEP_S_MAX, each=note)
    parties.link.mend()
    back = parties.wait(
        lambda sight: sight.session > cut.session, what="the next Handshake", deadline_s=_STEP_S_MAX, each=note
    )
    newest = back.holes[-1] if back.holes else range(back.cursor, back.cursor)
    console.print(
        f"  [bold red]down[/] at seq {newest.start:,}, [bold green]back[/] at {newest.stop:,}: "
        "Live goes on there at once"
    )
    return back


def _tell_backfill(story: Story, seen: list[Sight], console: Console) -> None:
    """The holes as they shrank. The newest must be gone before anything of an older one comes."""
    story.missing_by_turn = [sight.missing for sight in seen]
    first = seen[0].holes
    story.hole_seqs = sum(map(len, first))
    story.check(bool(first), "there was no hole after the link had dropped")
    for sight in seen:
        older = zip(sight.holes[:-1], first, strict=False)
        story.check(all(now == before for now, before in older), "Backfill did not begin with the newest hole")
    console.print("  what is missing comes by Backfill, the newest hole first:")
    for line in _some([_holes_in_words(sight) for sight in seen]):
        console.print(line)


def _holes_in_words(sight: Sight) -> str:
    return f"  missing {sight.missing:>6,}   " + ("   ".join(map(_seqs, sight.holes)) or "nothing")


def _kill_the_boat(story: Story, parties: Parties, console: Console) -> None:
    console.rule("[bold]4. kill -9, first the boat, then the cloud")
    with console.status("waiting for the middle of a second ...") as status:
        # A good part of a second after the last sync: frames are in memory that no disk of the boat has seen.
        at_kill = parties.wait(
            lambda sight: sight.cursor - sight.durable_head > FRAMES_PER_S // 3,
            what="frames that are in the boat's memory only",
            deadline_s=_STEP_S_MAX,
        )
        parties.kill("boat")
        story.last_leg_us = wall_clock_us()
        parties.start_boat("-replay", str(_write_last_leg(story, parties.folder)))
        after = parties.wait(
            lambda sight: sight.session > at_kill.session and bool(sight.boat_void) and bool(sight.void),
            what="the Handshake after the boat was killed",
            deadline_s=_STEP_S_MAX,
            each=lambda sight: status.update(_in_words(sight)),
        )
    unsynced, void = after.boat_void[-1], after.void[-1]
    story.durable_at_boat_kill = unsynced.start - 1
    story.saved_by_live = void.start - unsynced.start
    story.seqs_void = len(void)
    story.check(story.saved_by_live > 0, "Live had brought nothing that the boat lost")
    story.check(after.head + 1 >= void.stop, "a void seq was given to a frame")
    console.print(
        f"  [bold red]boat[/] killed; its disk ends at seq {story.durable_at_boat_kill:,}. The next "
        f"{story.saved_by_live:,} were in memory only:\n  lost on board, but Live had brought them to the cloud"
    )
    console.print(f"  seqs {_seqs(void)} are [bold]void[/]: set aside, on no disk, never used again")


def _kill_the_cloud(story: Story, parties: Parties, console: Console) -> None:
    with console.status("the cloud is dead, the boat records on ...") as status:
        goal = parties.sight.head + FRAMES_PER_S
        before = parties.wait(lambda sight: sight.cursor >= goal, what="Live again", deadline_s=_STEP_S_MAX)
        parties.kill("cloud")
        parties.start_cloud()
        after = parties.wait(
            lambda sight: sight.session > before.session and sight.cursor > before.cursor and not sight.missing,
            what="catching up after the cloud was killed",
            deadline_s=_STEP_S_MAX,
            each=lambda sight: status.update(_in_words(sight)),
        )
    story.cursor_before_cloud_kill, story.cursor_after_cloud_kill = before.cursor, after.cursor
    console.print(
        f"  [bold red]cloud[/] killed at cursor {before.cursor:,}; up again, it went on from there to {after.cursor:,}"
    )


def _write_last_leg(story: Story, folder: Path) -> Path:
    """The last seconds of the voyage as a recording: when it ends, the boat stops once everything is acked."""
    path = folder / "last-leg.lpj"
    start_us = story.last_leg_us
    voyage = Voyage(seed=story.seed, start_us=start_us)
    frames = voyage.frames(start_us, start_us + LAST_LEG_S * US_PER_S, frames_per_s=FRAMES_PER_S)
    with LpjWriter(path) as writer:
        writer.append(frames, first_seq=1)
    return path


def _moor(parties: Parties, console: Console) -> None:
    console.rule("[bold]5. In harbour: the boat's journal against the cloud's log")
    with console.status("the last leg ...") as status:
        parties.wait_ended("boat", deadline_s=_STEP_S_MAX, each=lambda sight: status.update(_in_words(sight)))
        parties.stop("cloud")


def _compare(story: Story, parties: Parties, console: Console) -> None:
    with console.status("comparing every frame ..."):
        seal(parties.journal)
        journal, cloud = read_held(parties.journal), read_held(parties.data, channel=NAME)
        story.journal_bytes = log_bytes(parties.journal)
        story.cloud_bytes = log_bytes(parties.data, channel=NAME)
        story.lpj_bytes = write_lpj(journal.frames, parties.folder / "same-frames.lpj")
    _check_held(story, journal, cloud)
    more = story.cloud_frames - story.journal_frames
    console.print(
        f"  {story.journal_frames:,} frames in the journal: "
        f"{story.frames_not_equal} missing or different in the cloud, {story.frames_twice} twice"
    )
    console.print(f"  {story.cloud_frames:,} in the cloud: {more:,} more, those that Live saved from the boat's memory")
    console.print(
        f"  on disk: journal {format_bytes(story.journal_bytes)}; the same frames as .lpj "
        f"{format_bytes(story.lpj_bytes)};\n"
        f"  cloud {format_bytes(story.cloud_bytes)}, in the small blocks that Live sends"
    )
    _check_position(story, cloud, console)


def _check_held(story: Story, journal: Held, cloud: Held) -> None:
    story.journal_frames, story.cloud_frames = len(journal.frames), len(cloud.frames)
    story.frames_not_equal = sum(cloud.frames.get(key) != row for key, row in journal.frames.items())
    story.frames_twice = journal.twice + cloud.twice
    more = cloud.frames.keys() - journal.frames.keys()
    story.check(story.journal_frames > FRAMES_PER_S * (LIVE_S + 2 * LINK_DOWN_S), "the journal has too few frames")
    story.check(story.frames_not_equal == 0, "a frame of the journal is not in the cloud as it was recorded")
    story.check(story.frames_twice == 0, "a frame counts twice")
    story.check(len(more) == story.saved_by_live, "the cloud has frames that the boat never recorded")
    story.check(not journal.damage and not cloud.damage, "; ".join((*journal.damage, *cloud.damage)))


def _check_position(story: Story, cloud: Held, console: Console) -> None:
    """The newest position in the cloud must be where the voyage was at that moment."""
    found = last_position(cloud.frames)
    if found is None:
        story.check(False, "no position reached the cloud")
        return
    story.last_position = f"{found} at {format_time_us(found.time_us)[:19]}Z"
    latitude, longitude = Voyage(seed=story.seed, start_us=story.last_leg_us).position(found.time_us)
    error = max(abs(found.latitude - latitude), abs(found.longitude - longitude))
    story.check(error < _POSITION_ERROR_MAX, "the last position in the cloud is not where the boat was")
    console.print(f"  last position in the cloud: [bold]{story.last_position}[/]")


def _tell_the_end(story: Story, console: Console) -> None:
    if story.failures:
        console.print(f"[bold red]failed[/] (seed {story.seed}): {escape('; '.join(story.failures))}")
        console.print(f"everything is kept in {story.folder}; boat.log and cloud.log say more")
        return
    console.print(
        f"[bold green]all held[/] (seed {story.seed}, {story.seconds:.0f} s): "
        "all of the journal is in the cloud, once, unchanged"
    )
    folder = story.folder or "FOLDER"
    console.rule("[bold]Look for yourself" + ("" if story.folder else ": run  tidelog demo --keep, then"))
    for command in (
        f"tidelog log inspect {folder}/cloud-data --channel {NAME}",
        f"tidelog log verify {folder}/cloud-data",
        f"cat {folder}/cloud-data/{NAME}/state.json",
    ):
        console.print(f"  {command}", soft_wrap=True)


def _drawing(console: Console) -> str:
    """What the console printed as an SVG that loads nothing from anywhere."""
    drawn = console.export_svg(title="make demo")
    drawn = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", drawn, flags=re.DOTALL)
    # Without this some viewers drop the spaces at the beginning of a line.
    drawn = drawn.replace("<svg ", '<svg xml:space="preserve" ', 1)
    return drawn.replace("Fira Code", "DejaVu Sans Mono")
