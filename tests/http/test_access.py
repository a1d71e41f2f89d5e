"""Who may ask: tokens and their file, the one key, certificates of each kind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.pki.certificates import NOW_US, crafted, der
from tidelog.errors import InvalidConfig, RequestRefused
from tidelog.http.access import (
    ANYBODY,
    NOBODY,
    READ_DATA,
    READ_METRICS,
    READ_SCOPES,
    READ_STATUS,
    SCOPES,
    WRITE_BUS,
    Access,
    AccessOptions,
    Principal,
    new_token,
)
from tidelog.pki.identity import serial_hex
from tidelog.pki.revocation import RevocationList


class Clock:
    def __init__(self) -> None:
        self.now_us = NOW_US

    def __call__(self) -> int:
        return self.now_us

    def pass_s(self, seconds: float) -> None:
        self.now_us += int(seconds * 1_000_000)


def write(path: Path, *lines: str, mode: int = 0o600) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))
    path.chmod(mode)


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def refused(access: Access, headers: dict[str, str], certificate: bytes | None = None) -> RequestRefused:
    with pytest.raises(RequestRefused) as error:
        access.caller(headers, certificate)
    assert error.value.status == 401
    return error.value


def opened(path: Path, clock: Clock) -> Access:
    return Access(AccessOptions(token_file=path), now_us=clock)


# --- tokens --------------------------------------------------------------------------------------


def test_a_new_token_opens_what_its_line_says(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    every, narrow = new_token(name="ops"), new_token(name="dash", scopes=[READ_DATA], instances=["boat-*", "tug"])
    write(path, "# who may read", every.line, "", f"{narrow.line}  # the dashboard")
    assert every.secret not in path.read_text()
    access = opened(path, Clock())
    assert access.caller(bearer(every.secret), None) == Principal(name="ops", scopes=frozenset(READ_SCOPES))
    found = access.caller({"X-API-Key": narrow.secret}, None)
    assert (found.name, found.may(READ_DATA), found.may(READ_STATUS)) == ("dash", True, False)
    assert [found.sees(name) for name in ("boat-1", "tug", "tug2", "Boat-1")] == [True, True, False, False]


def test_two_tokens_are_never_alike() -> None:
    assert new_token(name="a").secret != new_token(name="a").secret
    assert len(new_token(name="a").secret) >= 40


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "two words"},
        {"name": ""},
        {"name": "a", "scopes": []},
        {"name": "a", "scopes": ["write:data"]},
        {"name": "a", "instances": ["a b"]},
        {"name": "a", "instances": []},
        {"name": "a", "instances": ["[a-z]"]},
        {"name": "a#b"},
    ],
)
def test_a_token_that_no_line_can_say_is_not_made(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig):
        new_token(**fields)  # type: ignore[arg-type]


def test_nobody_comes_in_without_a_good_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    token = new_token(name="ops")
    write(path, token.line)
    access = opened(path, Clock())
    assert access.caller({}, None) is NOBODY
    wrong = [token.secret + "x", token.secret[:-1], "", "\u00fc", token.line.split()[1]]
    for secret in wrong:
        assert refused(access, bearer(secret)).reason == "invalid_token"
    assert refused(access, {"Authorization": f"Basic {token.secret}"}).reason == "invalid_token"
    assert refused(access, {"Authorization": token.secret}).reason == "invalid_token"
    # A wrong Authorization is not saved by a good key beside it.
    refused(access, bearer("wrong") | {"X-API-Key": token.secret})


def test_a_token_is_taken_back_by_changing_the_file(tmp_path: Path) -> None:
    path, clock = tmp_path / "tokens", Clock()
    first, second = new_token(name="one"), new_token(name="two")
    write(path, first.line)
    before = path.stat()
    access = opened(path, clock)
    write(path, second.line)
    # As on a card whose clock counts in steps of two seconds: nothing but the content tells the two apart.
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_ino, path.stat().st_size) == (before.st_ino, before.st_size)
    clock.pass_s(1.5)
    refused(access, bearer(first.secret))
    assert access.caller(bearer(second.secret), None).name == "two"
    path.unlink()
    clock.pass_s(1.5)
    refused(access, bearer(second.secret))
    assert "gone" in (access.problem or "")
    write(path, first.line)
    clock.pass_s(1.5)
    assert access.caller(bearer(first.secret), None).name == "one"
    assert access.problem is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text("ops 1234 read:data\n"),
        lambda path: path.write_text(path.read_text()[:-1]),
        lambda path: path.write_bytes(b"\xff\xfe\n"),
        lambda path: path.write_text(path.read_text().replace("read:data", "read:everything")),
        lambda path: path.chmod(0o620),
        lambda path: path.chmod(0o604),
    ],
)
def test_a_damaged_file_changes_nothing_and_opens_nothing(tmp_path: Path, damage: object) -> None:
    path, clock = tmp_path / "tokens", Clock()
    token = new_token(name="ops")
    write(path, token.line)
    access = opened(path, clock)
    damage(path)  # type: ignore[operator]
    clock.pass_s(1.5)
    assert access.caller(bearer(token.secret), None).name == "ops"
    assert "stay in force" in (access.problem or "")
    with pytest.raises(InvalidConfig, match="tokens"):
        opened(path, clock)


def test_a_file_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path in (tmp_path / "missing", tmp_path, pipe):
        with pytest.raises(InvalidConfig):
            opened(path, Clock())


def test_the_one_key_of_lplex_reads_everything() -> None:
    access = Access(AccessOptions(api_key="boat-key"))
    for headers in (bearer("boat-key"), {"X-API-Key": "boat-key"}):
        found = access.caller(headers, None)
        assert found.scopes == frozenset(SCOPES)
        assert found.sees("any")
    refused(access, {"X-API-Key": "boat-kez"})
    assert "boat-key" not in repr(AccessOptions(api_key="boat-key"))


def test_anonymous_callers_are_let_in_only_when_told_so() -> None:
    assert Access(AccessOptions()).caller({}, None) is NOBODY
    open_to_all = Access(AccessOptions(anonymous=True))
    assert open_to_all.caller({}, None) is ANYBODY
    assert not ANYBODY.may(WRITE_BUS)
    assert open_to_all.caller({}, certified("boat")) is ANYBODY
    refused(open_to_all, bearer("wrong"))


# --- certificates --------------------------------------------------------------------------------


def certified(kind: str, **contents: object) -> bytes:
    return der(crafted(common_names=["alice"], uris=[f"spiffe://fleet/{kind}/alice"], **contents))  # type: ignore[arg-type]


def test_each_kind_of_certificate_reads_its_part() -> None:
    access = Access(AccessOptions())
    operator = access.caller({}, certified("operator"))
    assert operator.scopes == frozenset(SCOPES)
    assert operator.sees("any")
    boat = access.caller({}, certified("boat"))
    assert (boat.may(READ_STATUS), boat.may(READ_DATA), boat.may(READ_METRICS)) == (True, True, False)
    assert (boat.sees("alice"), boat.sees("bob")) == (True, False)
    assert access.caller({}, certified("node")).scopes == frozenset()
    # As lplex issues them: no URI, so a boat whatever the name.
    assert access.caller({}, der(crafted(common_names=["operator"]))).instances == ("operator",)


def test_certificates_that_are_not_good_any_more_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "revoked"
    good = certified("operator")
    path.write_text(f"{serial_hex(0xABCDEF)} stolen\n")
    access = Access(AccessOptions(), revocations=RevocationList(path, now_us=NOW_US))
    assert refused(access, {}, good).reason == "certificate_revoked"
    other_fleet = Access(AccessOptions(fleet="other"))
    assert refused(other_fleet, {}, good).reason == "bad_identity"
    old = certified("operator", begins_us=NOW_US - 10_000_000, ends_us=NOW_US - 5_000_000)
    assert refused(Access(AccessOptions()), {}, old).reason == "certificate_expired"
    assert refused(Access(AccessOptions()), {}, b"junk").reason == "bad_identity"


def test_a_token_decides_over_a_certificate() -> None:
    access = Access(AccessOptions(api_key="key"))
    assert access.caller(bearer("key"), certified("boat")).name == "api-key"
    refused(access, bearer("wrong"), certified("operator"))
