"""`tidelog token`: make, list and revoke the tokens that read over HTTP.

The file is the one that `-http-tokens` names (`tidelog.http.access` says what is in it). It is replaced as a whole,
so a server that reads it meanwhile finds the old tokens or the new ones; comments stay. A secret is shown once and
kept nowhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import click

_FILE = click.option("--file", default="tokens", show_default=True, metavar="FILE", help="The file of tokens.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


@click.group()
def token() -> None:
    """Make, list and revoke the tokens that read over HTTP."""


@token.command()
@click.argument("name", required=False)
@click.option("--scopes", default="read:status,read:data,read:metrics", show_default=True, help="Commas between.")
@click.option("--instances", default="*", show_default=True, help="Boats it may see: names, * and ?, commas between.")
@_FILE
@_JSON
def new(name: str | None, scopes: str, instances: str, file: str, as_json: bool) -> None:
    """Make a token for NAME (one is made up if there is none) and print its secret, this once."""
    from tidelog.cli.output import print_json
    from tidelog.errors import InvalidConfig
    from tidelog.http.access import new_token
    from tidelog.pki.identity import is_name

    name = name or f"token-{secrets.token_hex(4)}"
    if not is_name(name):
        problem = f"{name!r} is not a name; use letters, digits, dots, dashes and underscores"
        raise InvalidConfig(section="token", problems=[problem])
    made = new_token(name=name, scopes=_parts(scopes), instances=_parts(instances))
    with _changing(Path(file)) as lines:
        if any(_name_of(line) == name for line in lines):
            problem = f"{file} has a token of {name} already; revoke that one first, or choose another name"
            raise InvalidConfig(section="token", problems=[problem])
        lines.append(made.line)
    if as_json:
        print_json({"name": name, "token": made.secret, "file": file})
        return
    print(made.secret)
    print(f"tidelog: this is the only time it is shown; {file} keeps its hash, under {name}", file=sys.stderr)


@token.command("list")
@_FILE
@_JSON
def list_(file: str, as_json: bool) -> None:
    """Show who has a token, and what it may read."""
    from tidelog.cli.output import print_json, print_table
    from tidelog.http.access import parse_tokens

    holders = sorted(parse_tokens(_checked(Path(file), missing_ok=False)).values(), key=lambda holder: holder.name)
    if as_json:
        print_json(
            [
                {"name": holder.name, "scopes": sorted(holder.scopes), "instances": list(holder.instances)}
                for holder in holders
            ]
        )
        return
    rows = [[holder.name, ", ".join(sorted(holder.scopes)), ", ".join(holder.instances)] for holder in holders]
    columns = ["name", "scopes", "instances"]
    print_table("", columns, rows, left=frozenset(columns))


@token.command()
@click.argument("name")
@_FILE
@_JSON
def revoke(name: str, file: str, as_json: bool) -> None:
    """Take back the token of NAME; a running server notices within seconds."""
    from tidelog.cli.output import print_json
    from tidelog.errors import InvalidConfig

    with _changing(Path(file), missing_ok=False) as lines:
        kept = [line for line in lines if _name_of(line) != name]
        if len(kept) == len(lines):
            problem = f"{file} has no token of {name}; see `tidelog token list --file {file}`"
            raise InvalidConfig(section="token", problems=[problem])
        lines[:] = kept
    if as_json:
        print_json({"revoked": name, "file": file})
    else:
        print(f"{name} is revoked")


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _name_of(line: str) -> str | None:
    words = line.partition("#")[0].split()
    return words[0] if words else None


@contextlib.contextmanager
def _changing(path: Path, *, missing_ok: bool = True) -> Iterator[list[str]]:
    """The file's lines, written back as the caller leaves them, unless it raises."""
    from tidelog.http.access import parse_tokens
    from tidelog.pki.files import PRIVATE_MODE, replace_file

    with _locked(path.parent):
        lines = _checked(path, missing_ok=missing_ok).decode().splitlines()
        before = path.stat() if path.exists() else None
        yield lines
        data = "".join(f"{line}\n" for line in lines).encode()
        parse_tokens(data)  # what a server would refuse must not get there
        # A server in the file's group must still be able to read it; others never.
        replace_file(path, data, mode=PRIVATE_MODE if before is None else before.st_mode & 0o640 | PRIVATE_MODE)
        if before is not None and before.st_uid != os.geteuid():
            os.chown(path, before.st_uid, before.st_gid)


def _checked(path: Path, *, missing_ok: bool) -> bytes:
    """The file's bytes; raises if a server could not use them."""
    from tidelog.errors import InvalidConfig
    from tidelog.http.access import TokenFile
    from tidelog.pki.files import read_file
    from tidelog.storage.log.writer import wall_clock_us
    from tidelog.units import MIB

    if not path.exists():
        if missing_ok:
            return b""
        problem = f"{path}: there is no such file; name it with --file, or make a token with `tidelog token new`"
        raise InvalidConfig(section="token", problems=[problem])
    TokenFile(path, now_us=wall_clock_us())
    return read_file(path, bytes_max=4 * MIB)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One command at a time: two that add a token at once must not lose one of them."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
