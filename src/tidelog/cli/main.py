"""The `tidelog` command: what is common to all of its commands.

Exit codes: 0 done; 1 the data is damaged, a simulation found a violation or a cluster refused; 2 the input cannot be
used or the call is wrong; 70 a bug in Tidelog; 74 the disk failed under a boat, a cloud or a node; 130 interrupted; 141
the reader of our output went away; 143 terminated. Every failure is one sentence on stderr. `TIDELOG_TRACEBACK=1` shows
the traceback too.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence

import click

from tidelog import __version__
from tidelog.cli.lazy import LazyCommand, LazyGroup
from tidelog.errors import DiskFailed, LogError
from tidelog.extras import optional

EXIT_UNUSABLE = 2
EXIT_BUG = 70
EXIT_DISK = 74
"""EX_IOERR of sysexits.h; see `tidelog.cli.disk_trouble`."""
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

_COMMANDS = {
    "boat": LazyCommand("tidelog.cli.processes", "boat", "Record a bus into a journal and ship it to the cloud."),
    "cloud": LazyCommand("tidelog.cli.processes", "cloud", "Take the journals of many boats and keep them."),
    "node": LazyCommand("tidelog.cli.processes", "node", "Be one node of a cluster."),
    "cluster": LazyCommand(
        "tidelog.cli.cluster.commands", "cluster", "Look at a cluster, and change who belongs to it."
    ),
    "channel": LazyCommand("tidelog.cli.channels.commands", "channel", "Create, look at, change and delete channels."),
    "group": LazyCommand("tidelog.cli.channels.group_commands", "group", "Look at consumer groups, and delete them."),
    "producer": LazyCommand(
        "tidelog.cli.channels.producer_commands", "producer", "Look at producers of channels, remove them."
    ),
    "cursor": LazyCommand(
        "tidelog.cli.channels.group_commands", "cursor", "Look at named cursors of channels, and move them."
    ),
    "pub": LazyCommand("tidelog.cli.channels.pub_sub", "pub", "Write records to a channel."),
    "sub": LazyCommand("tidelog.cli.channels.pub_sub", "sub", "Read the records of a channel."),
    "log": LazyCommand("tidelog.cli.log.commands", "log", "Inspect, verify, dump, import and export logs."),
    "pipeline": LazyCommand(
        "tidelog.cli.pipeline_commands", "pipeline", "Channels to tables with Spark: run, look, prove, tidy up."
    ),
    "ca": LazyCommand("tidelog.cli.cluster.ca_commands", "ca", "Make, renew and revoke certificates."),
    "token": LazyCommand(
        "tidelog.cli.cluster.token_command", "token", "Make, list and revoke the tokens that read over HTTP."
    ),
    "bench": LazyCommand("tidelog.cli.bench_commands", "bench", "Measure whatever has a bar to reach."),
    "sim": LazyCommand("tidelog.cli.sim_commands", "sim", "Run everything that decides through faults."),
    "demo": LazyCommand(
        "tidelog.cli.demo.run", "demo", "From boats to tables, through cuts and kills, every frame compared."
    ),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tidelog")
def cli() -> None:
    """One replicated log, from a boat's bus to a Spark table."""


def main(first: Sequence[str] = ()) -> None:
    """Entry point of the `tidelog` command, and with `first` of those that are one of its commands."""
    if not __debug__:
        _say("Tidelog's asserts guard your data; run it without -O and without PYTHONOPTIMIZE.")
        sys.exit(EXIT_UNUSABLE)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path need not be text in any encoding
    sys.exit(run([*first, *sys.argv[1:]]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code and raises nothing."""
    try:
        code = _invoke(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _drop_output()
        return EXIT_BROKEN_PIPE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except DiskFailed as error:
        _explain(str(error))
        return EXIT_DISK
    except LogError as error:
        _explain(str(error))
        return EXIT_UNUSABLE
    except OSError as error:
        _explain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return EXIT_UNUSABLE
    except Exception as error:
        _explain(f"a bug in Tidelog: {type(error).__name__}: {error}; run again with TIDELOG_TRACEBACK=1 and report it")
        return EXIT_BUG


def _invoke(arguments: Sequence[str]) -> int:
    # make_context and invoke instead of click's own main: that one turns a broken pipe into exit code 1,
    # which would read as "damaged" after `verify`.
    try:
        with cli.make_context("tidelog", list(arguments)) as context, optional(f"tidelog {arguments[0]}"):
            cli.invoke(context)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    return 0


def _explain(message: str) -> None:
    if os.environ.get("TIDELOG_TRACEBACK") == "1":
        traceback.print_exc()
    _say(" ".join(message.split()))


def _say(message: str) -> None:
    print(f"tidelog: {message}", file=sys.stderr)


def _drop_output() -> None:
    """Point stdout to nowhere, or the interpreter complains when it flushes what nobody reads."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
