"""What the commands of `tidelog ca` do: read the clock, ask an `Authority`, write files, say what happened.

A boat gets the names that the seed's configuration uses: `boat-001.crt`, `boat-001.key`, and `ca.crt`, which is
the nodes' authority, because it is the server that a boat verifies. A node gets `ca.crt` (the nodes' authority, for
its peers) and `client-ca.crt` (the boats', for the boats that call it). An operator or a client gets
`ca.crt`: it calls nodes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tidelog.cli.output import print_json, print_table, warn
from tidelog.errors import AuthorityError, LogError
from tidelog.pki.authority import (
    FOLDER_NAMES,
    INDEX_NAME,
    REVOKED_NAME,
    SIGNED_BY,
    Authority,
    IssuedCertificate,
    Listed,
    public_key_of,
    read_authority_certificate,
    refuse_existing,
)
from tidelog.pki.certificates import DAY_US, AuthorityOptions
from tidelog.pki.files import PRIVATE_MODE, read_file, replace_file, translated, write_new
from tidelog.pki.identity import CERTIFICATE_BYTES_MAX, Kind, is_name, parse_certificate, serial_hex, validity_us
from tidelog.units import format_time_us

PASSPHRASE_VARIABLE = "TIDELOG_CA_PASSPHRASE"
_PASSPHRASE_BYTES_MAX = 1023
"""OpenSSL reads no longer ones."""
_KINDS: tuple[Kind, ...] = ("boat", "node")


def _kind(*, node: bool, operator: bool, client: bool) -> Kind:
    if node + operator + client > 1:
        raise click.UsageError("--node, --operator and --client exclude each other; give one, or none for a boat.")
    return "node" if node else "operator" if operator else "client" if client else "boat"


def run_init(
    folder: str, *, only: str | None, fleet: str, days: int, passphrase_file: str | None, as_json: bool
) -> None:
    kinds = [kind for kind in _KINDS if only in (None, FOLDER_NAMES[kind])]
    passphrase = _passphrase(passphrase_file)
    options = [AuthorityOptions(kind=kind, fleet=fleet, days=days) for kind in kinds]
    for kind in kinds:
        refuse_existing(Path(folder, FOLDER_NAMES[kind]))  # before anything is made
    made = [
        Authority.create(Path(folder, FOLDER_NAMES[one.kind]), one, now_us=_now_us(), passphrase=passphrase)
        for one in options
    ]
    if as_json:
        print_json({"folder": folder, "fleet": fleet, "authorities": [_authority_facts(one) for one in made]})
        return
    for authority in made:
        ends = format_time_us(validity_us(authority.certificate)[1])[:10]
        print(f"made the {authority.kind}s' authority of {fleet} in {authority.folder}, good until {ends}")
    print("keep every ca.key secret and backed up; issue certificates with `tidelog ca issue`")


def run_issue(
    name: str,
    *,
    node: bool,
    operator: bool,
    client: bool,
    server_names: Sequence[str],
    days: int,
    out: str,
    folder: str,
    passphrase_file: str | None,
    as_json: bool,
) -> None:
    kind = _kind(node=node, operator=operator, client=client)
    authority = _authority(folder, kind, passphrase=_passphrase(passphrase_file))
    target, companions = Path(out), _companions(folder, kind)
    if is_name(name):
        _refuse_clashes(target, [f"{name}.crt", f"{name}.key"], companions)
    issued = authority.issue(name, kind=kind, now_us=_now_us(), days=days, server_names=server_names)
    written = _write_issued(target, issued, companions)
    _say_issued("issued", issued, authority, written, as_json=as_json)
    if kind == "node" and not server_names:
        warn("without --server-name no client can verify this node as a server")
    if "ca.crt" not in companions:
        warn(f"{folder} has no certificate of the nodes' authority, so no ca.crt was written; copy it from there")


def run_renew(
    name: str,
    *,
    node: bool,
    operator: bool,
    client: bool,
    server_names: Sequence[str],
    new_key: bool,
    days: int,
    out: str,
    folder: str,
    passphrase_file: str | None,
    as_json: bool,
) -> None:
    kind = _kind(node=node, operator=operator, client=client)
    authority = _authority(folder, kind, passphrase=_passphrase(passphrase_file))
    target, companions = Path(out), _companions(folder, kind)
    if is_name(name):
        _refuse_clashes(target, [f"{name}.crt", f"{name}.key"] if new_key else [], companions)
        if not new_key:
            _refuse_other_key(target / f"{name}.crt", authority, name, kind)
    issued = authority.renew(
        name, kind=kind, now_us=_now_us(), days=days, new_keys=new_key, server_names=tuple(server_names) or None
    )
    written = _write_issued(target, issued, companions)
    _say_issued("renewed", issued, authority, written, as_json=as_json)


def run_revoke(
    name_or_serial: str, *, node: bool, operator: bool, client: bool, reason: str, folder: str, as_json: bool
) -> None:
    kind = _kind(node=node, operator=operator, client=client)
    now_us = _now_us()
    found = [(one, one.find(name_or_serial, now_us, kind=kind)) for one in _authorities(folder)]
    # A serial says by itself whose it is; a name may be a boat's, a node's, an operator's and a client's at once.
    named = [one for one, rows in found if rows and rows[0].name == name_or_serial]
    chosen = named or [one for one, rows in found if rows]
    if not chosen:
        raise AuthorityError(path=folder, problem=_nobody(name_or_serial, kind, folder, now_us))
    signed_kind = kind if SIGNED_BY[kind] == chosen[0].kind else None
    rows = chosen[0].revoke(name_or_serial, kind=signed_kind, now_us=now_us, reason=reason)
    revocation_list = chosen[0].folder / REVOKED_NAME
    if as_json:
        print_json({"revocation_list": str(revocation_list), "revoked": [_row_facts(row) for row in rows]})
        return
    for row in rows:
        state = "is revoked" if row.status == "revoked" else f"is {row.status} already"
        print(f"certificate {row.serial} of {row.kind} {row.name} {state}")
    print(f"the list is {revocation_list}; servers that read it elsewhere need the new copy")


def _nobody(name: str, kind: Kind, folder: str, now_us: int) -> str:
    """That no holder of this kind has the name, and who has it."""
    others = [row.kind for one in _authorities(folder) for row in one.find(name, now_us)]
    words: dict[Kind, str] = {
        "boat": "it is a boat's, leave out --node, --operator and --client",
        "node": "it is a node's, add --node",
        "operator": "it is an operator's, add --operator",
        "client": "it is a client's, add --client",
    }
    where = words[others[0]] if others else "`tidelog ca list` shows all"
    return f"no {kind} has the name or serial {name!a}; {where}"


def run_list(folder: str, *, as_json: bool) -> None:
    now_us = _now_us()
    authorities = _authorities(folder)
    rows = [row for authority in authorities for row in authority.certificates(now_us)]
    if as_json:
        facts = [_authority_facts(authority, now_us) for authority in authorities]
        print_json({"folder": folder, "authorities": facts, "certificates": [_row_facts(row) for row in rows]})
        return
    lines = []
    for authority in authorities:
        ends_us = validity_us(authority.certificate)[1]
        days_left = (ends_us - now_us) // DAY_US
        status = "valid" if days_left >= 0 else "expired"
        serial = serial_hex(authority.certificate.serial_number)
        lines.append([authority.kind, "(authority)", status, format_time_us(ends_us)[:10], str(days_left), serial, ""])
    lines += [
        [row.kind, row.name, row.status, format_time_us(row.not_after_us)[:10], _days(row), row.serial, row.reason]
        for row in rows
    ]
    columns = ["kind", "name", "status", "expires", "days left", "serial", "reason"]
    print_table("", columns, lines, left=frozenset(columns) - {"days left"})


def _now_us() -> int:
    return time.time_ns() // 1000


def _days(row: Listed) -> str:
    return "-" if row.status == "revoked" else str(row.days_left)


def _passphrase(passphrase_file: str | None) -> bytes | None:
    if passphrase_file is not None:
        data = read_file(Path(passphrase_file), bytes_max=_PASSPHRASE_BYTES_MAX + 1)
        passphrase, place = data.split(b"\n")[0].removesuffix(b"\r"), passphrase_file
    elif PASSPHRASE_VARIABLE in os.environ:
        passphrase, place = os.fsencode(os.environ[PASSPHRASE_VARIABLE]), PASSPHRASE_VARIABLE
    else:
        return None
    if not 1 <= len(passphrase) <= _PASSPHRASE_BYTES_MAX:
        raise AuthorityError(path=place, problem=f"a passphrase has 1 to {_PASSPHRASE_BYTES_MAX} bytes")
    return passphrase


def _authority(folder: str, kind: Kind, *, passphrase: bytes | None) -> Authority:
    signer = SIGNED_BY[kind]
    authority = Authority(Path(folder, FOLDER_NAMES[signer]), passphrase=passphrase)
    if authority.kind != signer:
        raise AuthorityError(path=str(authority.folder), problem=f"this is the authority of the {authority.kind}s")
    return authority


def _authorities(folder: str) -> list[Authority]:
    # A tree that holds only another authority's ca.crt has nothing to list or revoke.
    found = [Path(folder, name) for name in FOLDER_NAMES.values() if Path(folder, name, INDEX_NAME).exists()]
    if not found:
        raise AuthorityError(path=folder, problem="there is no authority; make one with `tidelog ca init`")
    return [Authority(path) for path in found]


def _companions(folder: str, kind: Kind) -> dict[str, bytes]:
    """The certificates that a holder needs to verify others, by file name."""
    wanted = {"ca.crt": FOLDER_NAMES["node"]} | ({"client-ca.crt": FOLDER_NAMES["boat"]} if kind == "node" else {})
    read = {name: read_authority_certificate(Path(folder, tree)) for name, tree in wanted.items()}
    return {name: data for name, data in read.items() if data is not None}


def _refuse_clashes(target: Path, new_names: Sequence[str], companions: dict[str, bytes]) -> None:
    """Say what is in the way before a certificate is made that could then not be written."""
    for name in new_names:
        refuse_existing(target / name)
    for name, data in companions.items():
        path = target / name
        if path.exists() and read_file(path, bytes_max=CERTIFICATE_BYTES_MAX) != data:
            problem = "another authority's certificate is here; choose another --out folder"
            raise AuthorityError(path=str(path), problem=problem)


def _refuse_other_key(path: Path, authority: Authority, name: str, kind: Kind) -> None:
    """A renewed certificate beside another key would not work; the holder would find out at sea."""
    if not path.exists():
        return
    present = parse_certificate(read_file(path, bytes_max=CERTIFICATE_BYTES_MAX))
    rows = [row for row in authority.certificates(_now_us()) if (row.kind, row.name) == (kind, name)]
    if not rows:
        return  # the authority says it better
    issued_path = authority.issued_path(name, rows[-1].serial)
    last = parse_certificate(read_file(issued_path, bytes_max=CERTIFICATE_BYTES_MAX))
    if public_key_of(present) != public_key_of(last):
        problem = f"it is for another key than the last certificate of {name}; choose another --out folder"
        raise AuthorityError(path=str(path), problem=problem)


def _write_issued(target: Path, issued: IssuedCertificate, companions: dict[str, bytes]) -> list[str]:
    """Key first: a certificate without its key is useless, a key without its certificate can be renewed."""
    name = issued.identity.name
    try:
        with translated("make folder", target):
            target.mkdir(parents=True, exist_ok=True)
        if issued.key_pem is not None:
            write_new(target / f"{name}.key", issued.key_pem, mode=PRIVATE_MODE)
            write_new(target / f"{name}.crt", issued.certificate_pem)
        else:
            replace_file(target / f"{name}.crt", issued.certificate_pem)
        for file_name, data in companions.items():
            replace_file(target / file_name, data)
    except LogError as error:
        serial = serial_hex(issued.serial)
        problem = f"certificate {serial} was made but not written ({error}); revoke {serial} and issue it again"
        raise AuthorityError(path=str(target), problem=problem) from error
    own = [f"{name}.crt", *([f"{name}.key"] if issued.key_pem is not None else [])]
    return [str(target / file_name) for file_name in (*own, *companions)]


def _say_issued(
    verb: str, issued: IssuedCertificate, authority: Authority, written: list[str], *, as_json: bool
) -> None:
    serial, ends = serial_hex(issued.serial), format_time_us(issued.not_after_us)
    if as_json:
        identity = issued.identity
        facts = {"kind": identity.kind, "name": identity.name, "fleet": authority.fleet, "serial": serial}
        print_json({**facts, "not_after": ends, "files": written})
        return
    print(f"{verb} certificate {serial} for {issued.identity}, good until {ends[:10]}")
    print(f"wrote {', '.join(written)}")


def _authority_facts(authority: Authority, now_us: int | None = None) -> dict[str, Any]:
    ends_us = validity_us(authority.certificate)[1]
    facts: dict[str, Any] = {
        "kind": authority.kind,
        "fleet": authority.fleet,
        "folder": str(authority.folder),
        "serial": serial_hex(authority.certificate.serial_number),
        "not_after": format_time_us(ends_us),
    }
    return facts if now_us is None else facts | {"days_left": (ends_us - now_us) // DAY_US}


def _row_facts(row: Listed) -> dict[str, Any]:
    facts = asdict(row)
    for moment in ("not_before", "not_after"):
        facts[moment] = format_time_us(facts.pop(f"{moment}_us"))
    return facts
