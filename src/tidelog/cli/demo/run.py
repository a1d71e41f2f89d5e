"""`tidelog demo`: from two boats at sea to an answer in SQL, through cuts and kills. All on this machine.

Real processes, real certificates, in a temporary folder; only the report stays, in the working directory. The demo
succeeds when everything it promises was seen to hold; otherwise it says what did not, keeps the folder, and ends with
exit code 1. Ctrl-C and SIGTERM end every process and remove the folder.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

import click
from rich.console import Console
from rich.markup import escape

from tidelog.cli.demo import sea as demo_sea
from tidelog.cli.demo.parties import BOATS, DemoPartyFailed, Parties
from tidelog.cli.demo.story import QUICK, DemoSizes, Stage, Story
from tidelog.cli.demo.tables import PIPELINE, Shore, require_engine
from tidelog.errors import LogError

REPORT: Final = "demo-report.html"
_DRAWN_COLUMNS: Final = 84
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

Step = tuple[str, Callable[[], None]]

AT_SEA: Final[tuple[tuple[str, Callable[[Stage], None]], ...]] = (
    ("Who is who", demo_sea.make_certificates),
    ("Two boats sail, three nodes follow", demo_sea.sail),
    ("The link drops twice", demo_sea.cut_the_link),
    ("kill -9 the boat", demo_sea.kill_the_boat),
    ("kill -9 the node that leads", demo_sea.kill_the_leader),
)


@click.command()
@click.option("--seed", type=click.IntRange(min=0), default=None, help="Same voyages. Random by default.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@click.option("--keep", is_flag=True, help="Keep journals, logs, tables and certificates, and say where they are.")
@click.option("--report", default=REPORT, hidden=True, type=click.Path(dir_okay=False), help="The page to write.")
@click.option("--quick", is_flag=True, hidden=True, help="The same story with shorter waits.")
@click.option("--svg", type=click.Path(dir_okay=False), hidden=True, help="Draw the output into this file too.")
def demo(seed: int | None, as_json: bool, keep: bool, report: str, quick: bool, svg: str | None) -> None:
    """From boats to tables: cut the link, kill a boat and a node, and compare every frame."""
    require_engine()
    story = Story(seed=random.SystemRandom().randrange(1_000_000) if seed is None else seed)
    console = Console(quiet=as_json, highlight=False, record=svg is not None, width=_DRAWN_COLUMNS if svg else None)
    began = time.monotonic()
    with _ending_in_peace():
        folder = Path(tempfile.mkdtemp(prefix="tidelog-demo-"))
        try:
            tell(story, folder, console, sizes=QUICK if quick else DemoSizes(), report=Path(report))
            story.seconds = round(time.monotonic() - began, 1)
            keep = keep or bool(story.failures)
            story.folder = str(folder) if keep else ""
            _tell_the_end(story, console)
        except Exception:
            keep = True  # a bug in Tidelog: finding it needs everything
            click.echo(f"everything is kept in {folder}", err=True)
            raise
        finally:
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        click.echo(json.dumps(asdict(story)))
    if svg is not None:
        Path(svg).write_text(_drawing(console))
    sys.exit(1 if story.failures else 0)


@contextmanager
def _ending_in_peace() -> Iterator[None]:
    """The first SIGINT or SIGTERM ends the demo, as an exception; another one does not disturb the tidying up."""

    def end(number: int, frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tell(story: Story, folder: Path, console: Console, *, sizes: DemoSizes, report: Path) -> None:
    """Every step; one that cannot go on is a failure of the story, and the last one told."""
    parties = Parties(folder)
    stage = Stage(story, parties, console, sizes)
    at_sea: list[Step] = [(title, partial(step, stage)) for title, step in AT_SEA]
    try:
        with closing(parties), closing(Shore(stage, report)) as shore:
            ashore: list[Step] = [
                ("In harbour", shore.moor),
                ("Channels become tables", shore.fill),
                ("The proof", shore.prove),
                ("The first answer", shore.answer),
            ]
            for number, (title, step) in enumerate(at_sea + ashore, start=1):
                began = time.monotonic()
                console.rule(f"[bold]{number}. {title}")
                step()
                story.seconds_by_step[title] = round(time.monotonic() - began, 1)
    except (LogError, DemoPartyFailed) as error:
        story.failures.append(str(error))
    for watch in stage.watches.values():
        story.check(not watch.cursor_went_back, watch.cursor_went_back)


def _tell_the_end(story: Story, console: Console) -> None:
    if story.failures:
        console.print(f"[bold red]failed[/] (seed {story.seed}): {escape('; '.join(story.failures))}")
        console.print(f"everything is kept in {story.folder}; the *.log files say more")
        return
    console.print(
        f"[bold green]all held[/] (seed {story.seed}, {story.seconds:.0f} s): "
        "all of the journals is in the log and in the table, once, unchanged"
    )
    folder = story.folder or "FOLDER"
    console.rule("[bold]Look for yourself" + ("" if story.folder else ": run  tidelog demo --keep, then"))
    source = f"-path {folder}/n1-data -tables {folder}/tables -name {PIPELINE} -channels {','.join(BOATS)}"
    for command in (
        f"tidelog log inspect {folder}/n1-data --channel {BOATS[0]}",
        f"tidelog pipeline status {source}",
        f"tidelog pipeline audit {source} -journals {BOATS[0]}={folder}/{BOATS[0]}-journal",
    ):
        console.print(f"  {command}", soft_wrap=True)


def _drawing(console: Console) -> str:
    """What the console printed as an SVG that loads nothing from anywhere."""
    drawn = console.export_svg(title="make demo")
    drawn = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", drawn, flags=re.DOTALL)
    # Without this some viewers drop the spaces at the beginning of a line.
    drawn = drawn.replace("<svg ", '<svg xml:space="preserve" ', 1)
    return drawn.replace("Fira Code", "DejaVu Sans Mono")
