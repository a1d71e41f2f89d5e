"""A certificate authority in a folder: one for the boats, one for the nodes.

    boats/ca.crt                       what servers verify boats with
    boats/ca.key                       the secret: mode 0600, with a passphrase if one was given
    boats/issued/<name>-<serial>.crt   every certificate ever issued
    boats/revoked.txt                  the revocation list that servers read (`tidelog.pki.revocation`)
    boats/index                        what happened, one JSON object per line

Two trees, because one authority for both would let a stolen boat pass for a server. Operators, who command the nodes,
and clients, who write and read, have certificates of the nodes' authority, good for clients only.

What a caller must keep: hold `IssuedCertificate.key_pem` only as long as it takes to write it; it is kept nowhere here.

PA1  A certificate is in `issued/` and in the index before its holder gets it, so every certificate in use can be
     revoked.
PA2  `revoked.txt` decides which certificates are revoked and is written first; the index only records when and why.
PA3  A name has one certificate to be issued and any number of renewals; a name that differs from a known one only in
     case is refused (I4). A revoked or expired name may be issued again, since a boat may get a new computer. A node,
     an operator and a client may have the same name; they are different holders.
PA4  No key is ever overwritten, and the files of an authority appear all at once or not at all.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes

from tidelog.errors import AuthorityError, BadIdentity, NameTaken
from tidelog.pki.certificates import (
    DAY_US,
    AuthorityOptions,
    LeafOptions,
    RandomBytes,
    Signer,
    authority_options,
    certificate_pem,
    key_pem,
    make_authority,
    make_leaf,
    new_key,
    server_names_of,
)
from tidelog.pki.files import (
    FOLDER_MODE,
    PRIVATE_MODE,
    locked,
    read_file,
    replace_file,
    sync_folder,
    translated,
    write_new,
)
from tidelog.pki.identity import (
    CERTIFICATE_BYTES_MAX,
    Identity,
    Kind,
    NameRegistry,
    is_name,
    parse_certificate,
    require_valid_at,
    serial_hex,
    validity_us,
)
from tidelog.pki.revocation import LIST_BYTES_MAX, parse_revocations, parse_serial
from tidelog.units import MIB, format_time_us

FOLDER_NAMES: dict[Kind, str] = {"boat": "boats", "node": "nodes"}
"""Kinds of authorities."""
SIGNED_BY: dict[Kind, Kind] = {"boat": "boat", "node": "node", "operator": "node", "client": "node"}
"""The authority that signs a holder of this kind."""
CERTIFICATE_NAME = "ca.crt"
KEY_NAME = "ca.key"
ISSUED_NAME = "issued"
REVOKED_NAME = "revoked.txt"
INDEX_NAME = "index"
INDEX_BYTES_MAX = 64 * MIB
REASON_CHARACTERS_MAX = 200
EXPIRING_DAYS = 30

_REVOKED_HEAD = b"# Revoked certificates: a serial number in hex, then the reason. Comments begin with a hash.\n"

Status = Literal["valid", "expiring", "replaced", "expired", "revoked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedCertificate:
    """A certificate for its holder; `key_pem` is None where the holder keeps the key it has."""

    identity: Identity
    serial: int
    not_after_us: int
    certificate_pem: bytes
    key_pem: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One certificate as `tidelog ca list` shows it."""

    kind: Kind
    name: str
    serial: str
    not_before_us: int
    not_after_us: int
    days_left: int
    """Whole days; negative once it has expired."""
    status: Status
    """`replaced`: renewed since, but accepted until it expires. `expiring`: fewer than 30 days left."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One line of the index."""

    event: str
    at_us: int
    serial: str
    name: str = ""
    kind: str = ""
    """Only where the kind differs from the authority's."""
    not_before_us: int = 0
    not_after_us: int = 0
    reason: str = ""


class Authority:
    """An authority that exists on disk. The key is read only when something is to be signed."""

    def __init__(self, folder: Path, *, passphrase: bytes | None = None) -> None:
        self._folder = folder
        self._passphrase = passphrase
        path = folder / CERTIFICATE_NAME
        if not path.exists():
            raise AuthorityError(path=str(folder), problem="there is no authority; make one with `tidelog ca init`")
        self.certificate = parse_certificate(read_file(path, bytes_max=CERTIFICATE_BYTES_MAX))
        options = authority_options(self.certificate)
        if options is None:
            problem = "it was not made by `tidelog ca`; use the tool that made it"
            raise AuthorityError(path=str(path), problem=problem)
        self.kind: Kind = options.kind
        self.fleet = options.fleet

    @classmethod
    def create(
        cls,
        folder: Path,
        options: AuthorityOptions,
        *,
        now_us: int,
        passphrase: bytes | None = None,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> Authority:
        """Make an authority in a folder that must not exist (PA4)."""
        refuse_existing(folder)
        with translated("make folder", folder):
            folder.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            _fill(draft, make_authority(options, now_us=now_us, random_bytes=random_bytes), now_us, passphrase)
            with translated("make folder", folder):
                os.chmod(draft, FOLDER_MODE)
                os.rename(draft, folder)
                sync_folder(folder.parent)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        return cls(folder, passphrase=passphrase)

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def certificate_pem(self) -> bytes:
        return certificate_pem(self.certificate)

    def issue(
        self,
        name: str,
        *,
        now_us: int,
        kind: Kind | None = None,
        days: int = 730,
        server_names: Sequence[str] = (),
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> IssuedCertificate:
        """A first certificate for a name, with a new key (PA3); of the authority's own kind unless told."""
        kind = self._signed_kind(kind)
        options = LeafOptions(identity=Identity(kind, name), server_names=server_names, days=days)
        with locked(self._folder):
            held = [row for row in self.certificates(now_us) if row.kind == kind]
            NameRegistry(dict.fromkeys(row.name for row in held)).check(name)
            for row in held:
                if row.name == name and row.status not in ("expired", "revoked"):
                    raise NameTaken(name=name, held=f"certificate {row.serial}", remedy="renew it, or revoke it first")
            return self._issue(options, key=new_key(), now_us=now_us, random_bytes=random_bytes)

    def renew(
        self,
        name: str,
        *,
        now_us: int,
        kind: Kind | None = None,
        days: int = 730,
        new_keys: bool = False,
        server_names: Sequence[str] | None = None,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> IssuedCertificate:
        """Another certificate for a name that has one, by default for the same key, so no secret has to travel.

        The earlier one stays good until it expires: the holder may be at sea when this one is made.
        """
        kind = self._signed_kind(kind)
        with locked(self._folder):
            last = self._last_good(name, kind, now_us)
            path = self.issued_path(name, last.serial)
            before = parse_certificate(read_file(path, bytes_max=CERTIFICATE_BYTES_MAX))
            names = server_names_of(before) if server_names is None else server_names
            options = LeafOptions(identity=Identity(kind, name), server_names=names, days=days)
            key = new_key() if new_keys else before.public_key()
            return self._issue(options, key=key, now_us=now_us, random_bytes=random_bytes)

    def revoke(self, name_or_serial: str, *, now_us: int, kind: Kind | None = None, reason: str = "") -> list[Listed]:
        """Revoke every unexpired certificate of a name, or the one of this serial; returns them as they are now."""
        kind = self._signed_kind(kind)
        if len(reason) > REASON_CHARACTERS_MAX or not reason.isprintable() or "#" in reason:
            problem = f"a reason is one line of at most {REASON_CHARACTERS_MAX} characters without a hash"
            raise AuthorityError(path=str(self._folder), problem=problem)
        with locked(self._folder):
            found = self.find(name_or_serial, now_us, kind=kind)
            if not found:
                problem = f"no certificate has the name or serial {name_or_serial!a}; `tidelog ca list` shows all"
                raise AuthorityError(path=str(self._folder), problem=problem)
            by_name = found[0].name == name_or_serial
            wanted = [row for row in found if row.status != "revoked" and not (by_name and row.status == "expired")]
            if wanted:
                self._add_revoked(wanted, now_us, reason)
            serials = {row.serial for row in wanted or found}
            return [row for row in self.certificates(now_us) if row.serial in serials]

    def find(self, name_or_serial: str, now_us: int, *, kind: Kind | None = None) -> list[Listed]:
        """Every certificate of this name or, if nobody has that name, the one with this serial, of whatever kind.

        With `kind`, only a holder of that kind is looked for by name.
        """
        rows = self.certificates(now_us)
        serial = parse_serial(name_or_serial)
        by_name = [row for row in rows if row.name == name_or_serial and kind in (None, row.kind)]
        return by_name or [row for row in rows if serial is not None and row.serial == serial_hex(serial)]

    def certificates(self, now_us: int) -> list[Listed]:
        """Everything issued, in the order in which it was."""
        entries = self._entries()
        # The file decides which certificates are revoked, also after edits by hand; the index has the original reason.
        reasons = {serial_hex(serial): reason for serial, reason in self._revoked().items()}
        reasons |= {
            entry.serial: entry.reason
            for entry in entries
            if entry.event == "revoked" and entry.serial in reasons and entry.reason
        }
        issued = [entry for entry in entries if entry.event == "issued"]
        newest = {(entry.kind, entry.name): entry.serial for entry in issued if entry.serial not in reasons}
        return [_listed(entry, self.kind, now_us, reasons, newest.get((entry.kind, entry.name))) for entry in issued]

    def _signed_kind(self, kind: Kind | None) -> Kind:
        wanted = self.kind if kind is None else kind
        if SIGNED_BY[wanted] != self.kind:
            problem = f"the authority of the {self.kind}s signs no {wanted}; use that of the {SIGNED_BY[wanted]}s"
            raise AuthorityError(path=str(self._folder), problem=problem)
        return wanted

    def _issue(
        self,
        options: LeafOptions,
        *,
        key: ec.EllipticCurvePrivateKey | CertificatePublicKeyTypes,
        now_us: int,
        random_bytes: RandomBytes,
    ) -> IssuedCertificate:
        require_valid_at(self.certificate, now_us)
        private_key = key if isinstance(key, ec.EllipticCurvePrivateKey) else None
        certificate = make_leaf(
            options,
            signer=Signer(self.certificate, self._load_key()),
            fleet=self.fleet,
            public_key=key.public_key() if isinstance(key, ec.EllipticCurvePrivateKey) else key,
            now_us=now_us,
            random_bytes=random_bytes,
        )
        pem = certificate_pem(certificate)
        serial, name = serial_hex(certificate.serial_number), options.identity.name
        not_before_us, not_after_us = validity_us(certificate)
        entry = _Entry(
            event="issued",
            at_us=now_us,
            serial=serial,
            name=name,
            kind="" if options.identity.kind == self.kind else options.identity.kind,
            not_before_us=not_before_us,
            not_after_us=not_after_us,
        )
        write_new(self.issued_path(name, serial), pem)
        self._add_entries([entry])
        return IssuedCertificate(
            identity=options.identity,
            serial=certificate.serial_number,
            not_after_us=not_after_us,
            certificate_pem=pem,
            key_pem=None if private_key is None else key_pem(private_key),
        )

    def _last_good(self, name: str, kind: Kind, now_us: int) -> Listed:
        """The newest certificate of a name, which must not be revoked; expired is no obstacle to a renewal."""
        rows = [row for row in self.certificates(now_us) if (row.kind, row.name) == (kind, name)]
        if not rows:
            problem = f"{name!a} has no certificate; issue one, or look for the name with `tidelog ca list`"
            raise AuthorityError(path=str(self._folder), problem=problem)
        if rows[-1].status == "revoked":
            problem = f"the last certificate of {name} is revoked; issue a new one"
            raise AuthorityError(path=str(self._folder), problem=problem)
        return rows[-1]

    def issued_path(self, name: str, serial: str) -> Path:
        """Where the authority's own copy of a certificate is."""
        return self._folder / ISSUED_NAME / f"{name}-{serial}.crt"

    def _load_key(self) -> ec.EllipticCurvePrivateKey:
        path = self._folder / KEY_NAME
        data = read_file(path, bytes_max=CERTIFICATE_BYTES_MAX)
        try:
            # A passphrase for a key that has none is an error there; here it is merely not needed.
            passphrase = self._passphrase if b"ENCRYPTED" in data else None
            key = serialization.load_pem_private_key(data, passphrase)
        except TypeError:
            problem = "it has a passphrase; give it with --passphrase-file or in TIDELOG_CA_PASSPHRASE"
            raise AuthorityError(path=str(path), problem=problem) from None
        except (ValueError, UnsupportedAlgorithm):
            problem = "it cannot be opened: the passphrase is wrong or the file is damaged"
            raise AuthorityError(path=str(path), problem=problem) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != self.certificate.public_key():
            raise AuthorityError(path=str(path), problem=f"this is not the key of {CERTIFICATE_NAME} beside it")
        return key

    def _revoked(self) -> dict[int, str]:
        path = self._folder / REVOKED_NAME
        try:
            return parse_revocations(read_file(path, bytes_max=LIST_BYTES_MAX))
        except ValueError as error:
            raise AuthorityError(path=str(path), problem=f"{error}; repair it by hand") from error

    def _add_revoked(self, rows: Sequence[Listed], now_us: int, reason: str) -> None:
        self._revoked()  # refuses to add to a list that servers would refuse to read
        path = self._folder / REVOKED_NAME
        day = format_time_us(now_us)[:10]
        text = f"{reason}, {day}" if reason else day
        lines = "".join(f"{row.serial} {row.name}: {text}\n" for row in rows)
        replace_file(path, read_file(path, bytes_max=LIST_BYTES_MAX) + lines.encode())
        self._add_entries(
            [_Entry(event="revoked", at_us=now_us, serial=row.serial, name=row.name, reason=reason) for row in rows]
        )

    def _entries(self) -> Sequence[_Entry]:
        path = self._folder / INDEX_NAME
        entries = []
        for number, line in enumerate(read_file(path, bytes_max=INDEX_BYTES_MAX).splitlines(), 1):
            try:
                entries.append(_entry(json.loads(line)))
            except (ValueError, TypeError) as error:
                problem = f"line {number} is damaged; restore the file from a backup"
                raise AuthorityError(path=str(path), problem=problem) from error
        return entries

    def _add_entries(self, entries: Sequence[_Entry]) -> None:
        path = self._folder / INDEX_NAME
        replace_file(path, read_file(path, bytes_max=INDEX_BYTES_MAX) + b"".join(map(_line, entries)))


def refuse_existing(folder: Path) -> None:
    if folder.exists() or folder.is_symlink():
        problem = "it exists and is never overwritten; move it away or choose another folder"
        raise AuthorityError(path=str(folder), problem=problem)


def read_authority_certificate(folder: Path) -> bytes | None:
    """The PEM of an authority's certificate, ours or another tool's, or None where there is none."""
    path = folder / CERTIFICATE_NAME
    if not path.exists():
        return None
    data = read_file(path, bytes_max=CERTIFICATE_BYTES_MAX)
    try:
        parse_certificate(data)
    except BadIdentity as error:
        raise AuthorityError(path=str(path), problem=error.problem) from error
    return data


def public_key_of(certificate: x509.Certificate) -> bytes:
    """The public key's bytes, to tell whether two certificates are for one key."""
    return certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _fill(folder: Path, signer: Signer, now_us: int, passphrase: bytes | None) -> None:
    not_before_us, not_after_us = validity_us(signer.certificate)
    created = _Entry(
        event="created",
        at_us=now_us,
        serial=serial_hex(signer.certificate.serial_number),
        not_before_us=not_before_us,
        not_after_us=not_after_us,
    )
    write_new(folder / KEY_NAME, key_pem(signer.key, passphrase=passphrase), mode=PRIVATE_MODE)
    write_new(folder / CERTIFICATE_NAME, certificate_pem(signer.certificate))
    write_new(folder / REVOKED_NAME, _REVOKED_HEAD)
    write_new(folder / INDEX_NAME, _line(created))
    with translated("make folder", folder / ISSUED_NAME):
        (folder / ISSUED_NAME).mkdir(mode=FOLDER_MODE)
        sync_folder(folder)


def _entry(facts: Any) -> _Entry:
    """One line of the index again. Raises ValueError or TypeError if it cannot be one."""
    entry = _Entry(**facts)
    texts = (entry.event, entry.serial, entry.name, entry.kind, entry.reason)
    times = (entry.at_us, entry.not_before_us, entry.not_after_us)
    if not all(isinstance(text, str) for text in texts) or not all(type(time) is int for time in times):
        raise ValueError("a field has the wrong type")
    if entry.name and not is_name(entry.name):
        raise ValueError("a name is not a name")
    if entry.kind not in ("", *SIGNED_BY):
        raise ValueError("a kind is not a kind")
    return entry


def _line(entry: _Entry) -> bytes:
    facts: dict[str, Any] = {name: value for name, value in asdict(entry).items() if value not in ("", 0)}
    return json.dumps({"event": entry.event, **facts}).encode() + b"\n"


def _listed(entry: _Entry, kind: Kind, now_us: int, reasons: dict[str, str], newest: str | None) -> Listed:
    days_left = (entry.not_after_us - now_us) // DAY_US
    status: Status
    if entry.serial in reasons:
        status = "revoked"
    elif now_us > entry.not_after_us:
        status = "expired"
    elif entry.serial != newest:
        status = "replaced"
    else:
        status = "expiring" if days_left < EXPIRING_DAYS else "valid"
    own_kind: Kind | None = next((known for known in SIGNED_BY if known == entry.kind), None)
    return Listed(
        kind=own_kind or kind,
        name=entry.name,
        serial=entry.serial,
        not_before_us=entry.not_before_us,
        not_after_us=entry.not_after_us,
        days_left=days_left,
        status=status,
        reason=reasons.get(entry.serial, ""),
    )
