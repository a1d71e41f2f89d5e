"""`tidelog log`: look into logs and move frames in and out of them.

Only the options live here. Each command's work is in a module of its own, loaded when it is called.
"""

from __future__ import annotations

import click

from tidelog.cli.lazy import LazyGroup, forwards

_PATH = click.argument("path")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
_KINDS = ["lpj", "candump", "canboat", "ydwg", "n2k-ascii", "ikonvert", "garmin", "trc", "pcap", "ebl"]
_CHANNEL = click.option("--channel", help="One channel of a store, by name.")


@click.group(cls=LazyGroup)
def log() -> None:
    """Inspect, verify, dump, import and export logs.

    PATH may be a log folder, a .seg file, a journal, a store's data folder or an lplex .lpj file.
    """


@log.command()
@_PATH
@_CHANNEL
@_JSON
@click.option("--limit", type=click.IntRange(min=0), help="Blocks to list; 0 lists all. A table lists 100.")
@forwards("tidelog.cli.log.inspect", "run_inspect")
def inspect() -> None:
    """Show every block: offset, epoch, seqs, time, records, bytes, ratio."""


@log.command()
@_PATH
@_CHANNEL
@_JSON
@click.option("--deep", is_flag=True, help="Also decode every record, not only its checksum.")
@forwards("tidelog.cli.log.verify", "run_verify")
def verify() -> None:
    """Check every byte; exit 1 on damage. Changes nothing."""


@log.command()
@_PATH
@_CHANNEL
@click.option("--from", "start", metavar="OFFSET|TIME", help="First offset, or ISO time, to show.")
@click.option("--to", "end", metavar="OFFSET|TIME", help="Offset, or ISO time, to stop before.")
@click.option("--limit", type=click.IntRange(min=1), help="Records to show.")
@_JSON
@forwards("tidelog.cli.log.dump", "run_dump")
def dump() -> None:
    """Print records: a table on a terminal, JSON lines in a pipe."""


@log.command("import")
@click.argument("source")
@click.argument("target")
@click.option("--format", "kind", type=click.Choice(_KINDS), help="Instead of sniffing it.")
@click.option("--start", metavar="TIME", help="When a capture without dates begins; of times of day, the day.")
@click.option("--reencode", is_flag=True, help="Make frame blocks of .lpj blocks instead of carrying them unchanged.")
@click.option("--append", is_flag=True, help="Add to a log that exists.")
@click.option("--strict", is_flag=True, help="Stop at the first bad line or block instead of skipping it.")
@_JSON
@forwards("tidelog.cli.log.log_import", "run_import")
def import_() -> None:
    """Bring a file of another program into a log folder.

    It may be an .lpj journal, or a capture of candump, canboat (.raw), Yacht Devices (RAW text), Actisense (N2K ASCII,
    .ebl), iKonvert, Garmin (CSV), PCAN (.trc), or pcap and pcapng with SocketCAN frames.
    """


@log.command()
@click.argument("source")
@click.argument("target")
@click.option("--format", "kind", type=click.Choice(["lpj", "candump", "canboat"]), help="Instead of by suffix.")
@click.option("--lineage", metavar="HEX", help="Only this lineage; its first digits are enough.")
@click.option("--compression", type=click.Choice(["none", "zstd", "zstd-dict"]), help="Of an .lpj file; zstd.")
@click.option("--block-size", metavar="SIZE", help="Of an .lpj file: a power of two from 4KiB on; 256KiB.")
@click.option(
    "--fill-gaps",
    is_flag=True,
    help="For lplex's verify: a frame of PGN 65536 in an .lpj file for each missing seq.",
)
@_CHANNEL
@_JSON
@forwards("tidelog.cli.log.export", "run_export")
def export() -> None:
    """Write the frames of a log to an .lpj, candump (.log) or canboat (.raw) file, in the order of their seqs.

    lplex blocks that are in order go into an .lpj file byte for byte, unless --compression or --block-size is given or
    --fill-gaps finds a gap.
    """
