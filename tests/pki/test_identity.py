"""Every certificate of the list that can be judged by itself gets the right answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from tests.pki.certificates import KEY, NOW_US, crafted, der, pem
from tidelog.errors import (
    BadIdentity,
    BadRevocationList,
    CertificateExpired,
    CertificateNotYetValid,
    CertificateRevoked,
    NameTaken,
    TooManyNames,
    WeakCertificate,
    WrongKind,
)
from tidelog.pki.identity import (
    CERTIFICATE_BYTES_MAX,
    Identity,
    NameRegistry,
    identity_of,
    is_name,
    require_kind,
    require_valid_at,
)
from tidelog.pki.revocation import RevocationList, parse_revocations

DAY_US = 86_400_000_000
S = 1_000_000
BOAT_URI = "spiffe://fleet/boat/boat-001"

BAD_NAMES = {
    "empty": "",
    "traversal": "../../etc/x",
    "dot": ".",
    "dots": "..",
    "hidden": ".boat",
    "slash": "boat/001",
    "backslash": "boat\\001",
    "wildcard": "*",
    "wildcard host": "*.example.com",
    "nul at the end": "boat-001\0",
    "nul inside": "boat-001\0.example.com",
    "newline at the end": "boat-001\n",
    "space": "boat 001",
    "leading space": " boat-001",
    "leading dash": "-boat",
    "percent": "boat%2e001",
    "colon": "boat:001",
    "cyrillic o": "b\u043eat-001",
    "fullwidth digits": "boat-\uff10\uff10\uff11",
    "arabic digits": "boat-\u0660\u0660\u0661",
    "right to left": "boat-001\u202e",
    "zero width": "boat\u200b-001",
    "kelvin sign": "\u212aelvin",
    "64 characters": "b" * 64,
    "300 characters": "b" * 300,
}

bad_names = pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES.keys())


# --- who it is -----------------------------------------------------------------------------------


def test_uri_and_common_name_that_agree_name_the_boat() -> None:
    assert identity_of(pem(common_names=["boat-001"], uris=[BOAT_URI])) == Identity("boat", "boat-001")


def test_a_common_name_alone_is_a_boat() -> None:
    assert identity_of(pem(common_names=["boat-001"])) == Identity("boat", "boat-001")


def test_a_uri_alone_is_enough() -> None:
    assert identity_of(pem(uris=[BOAT_URI])) == Identity("boat", "boat-001")
    assert identity_of(pem(uris=["spiffe://fleet/node/n1"])) == Identity("node", "n1")


def test_der_is_read_like_pem() -> None:
    assert identity_of(der(crafted(common_names=["boat-001"]))) == Identity("boat", "boat-001")


def test_of_a_chain_the_first_certificate_counts() -> None:
    chain = pem(common_names=["boat-001"]) + pem(common_names=["boat-002"])
    assert identity_of(chain).name == "boat-001"


def test_host_names_name_nobody() -> None:
    certificate = pem(common_names=["boat-001"], hosts=["boat-002", "*.example.com", "boat-003"])
    assert identity_of(certificate) == Identity("boat", "boat-001")
    with pytest.raises(BadIdentity):
        identity_of(pem(hosts=["boat-001"]))


@pytest.mark.parametrize("name", ["b", "0", "Boat_1.example", "b" * 63, "a..b", "x-"])
def test_a_good_name_is_taken_as_it_is(name: str) -> None:
    assert identity_of(pem(common_names=[name])).name == name
    assert identity_of(pem(uris=[f"spiffe://fleet/node/{name}"])).name == name


# --- who it is not -------------------------------------------------------------------------------


@bad_names
def test_a_bad_common_name_is_refused(name: str) -> None:
    with pytest.raises(BadIdentity):
        identity_of(pem(common_names=[name]))


@pytest.mark.filterwarnings("ignore:Attribute's length")
@pytest.mark.parametrize("name", ["", "b" * 300])
def test_a_common_name_of_a_forbidden_length_is_refused_where_warnings_are_not_errors(name: str) -> None:
    with pytest.raises(BadIdentity, match="is not a name") as caught:
        identity_of(pem(common_names=[name]))
    assert len(str(caught.value)) < 250


@bad_names
def test_a_bad_name_in_the_uri_is_refused(name: str) -> None:
    with pytest.raises(BadIdentity):
        identity_of(pem(uris=[f"spiffe://fleet/boat/{name}"]))
    with pytest.raises(BadIdentity):
        identity_of(pem(uris=[f"spiffe://fleet/node/{name}"]))


@pytest.mark.parametrize(
    "uri",
    [
        "spiffe://fleet/boat",
        "spiffe://fleet/boat/",
        "spiffe://fleet/boat/a/b",
        "spiffe://fleet//boat/a",
        "spiffe:///boat/boat-001",
        "spiffe://fleet/captain/boat-001",
        "spiffe://fleet/BOAT/boat-001",
        "spiffe://fleet/boats/boat-001",
        "SPIFFE://fleet/boat/boat-001",
        "spiffe://Fleet/boat/boat-001",
        "spiffe://fleet:443/boat/boat-001",
        "spiffe://user@fleet/boat/boat-001",
        "spiffe://fleet/boat/boat-001?x=1",
        "spiffe://fleet/boat/boat-001#x",
        "spiffe://fleet/boat/boat%2D001",
        " spiffe://fleet/boat/boat-001",
        "spiffe://fleet/boat/boat-001\n",
        "spiffe://fl\u0435et/boat/boat-001",
        "https://fleet/boat/boat-001",
        "urn:boat:boat-001",
        "",
    ],
)
def test_a_uri_of_another_form_is_refused_even_with_a_good_common_name(uri: str) -> None:
    with pytest.raises(BadIdentity):
        identity_of(pem(common_names=["boat-001"], uris=[uri]))


@pytest.mark.parametrize(
    ("common_names", "uris"),
    [
        (["boat-002"], [BOAT_URI]),
        (["Boat-001"], [BOAT_URI]),
        ([""], [BOAT_URI]),
        (["boat-001\0"], [BOAT_URI]),
        (["boat-001", "boat-001"], []),
        (["boat-001", "boat-002"], []),
        (["boat-001", "boat-002"], [BOAT_URI]),
        (["boat-001"], [BOAT_URI, BOAT_URI]),
        (["boat-001"], [BOAT_URI, "spiffe://fleet/node/boat-001"]),
        (["boat-001"], [BOAT_URI, "https://example.com"]),
        ([], [BOAT_URI, "spiffe://fleet/boat/boat-002"]),
        ([], []),
    ],
)
def test_two_names_or_none_are_refused(common_names: list[str], uris: list[str]) -> None:
    with pytest.raises(BadIdentity):
        identity_of(pem(common_names=common_names, uris=uris))


def test_another_fleet_is_refused_where_the_fleet_is_known() -> None:
    certificate = pem(uris=["spiffe://other/boat/boat-001"])
    assert identity_of(certificate).name == "boat-001"
    with pytest.raises(BadIdentity, match="fleet other"):
        identity_of(certificate, fleet="fleet")
    assert identity_of(pem(common_names=["boat-001"]), fleet="fleet").name == "boat-001"


def test_an_authority_is_nobody() -> None:
    with pytest.raises(BadIdentity, match="authority"):
        identity_of(pem(common_names=["boat-001"], ca=True))


def test_a_message_shows_no_control_characters() -> None:
    with pytest.raises(BadIdentity) as caught:
        identity_of(pem(common_names=["\x1b[31mboat\u202e"]))
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()


def test_rsa_1024_is_too_weak_and_2048_is_not() -> None:
    with pytest.raises(WeakCertificate, match="key"):
        identity_of(pem(common_names=["b"], key=rsa.generate_private_key(65537, 1024)))
    assert identity_of(pem(common_names=["b"], key=rsa.generate_private_key(65537, 2048))).name == "b"


def test_small_curves_and_dsa_are_too_weak() -> None:
    with pytest.raises(WeakCertificate):
        identity_of(pem(common_names=["b"], key=ec.generate_private_key(ec.SECP192R1())))
    builder = x509.CertificateBuilder(serial_number=1).not_valid_before(crafted().not_valid_before_utc)
    name = crafted(common_names=["b"]).subject
    builder = builder.not_valid_after(crafted().not_valid_after_utc).subject_name(name).issuer_name(name)
    weak = builder.public_key(dsa.generate_private_key(1024).public_key()).sign(KEY, hashes.SHA256())
    with pytest.raises(WeakCertificate):
        identity_of(der(weak))
    ed = ed25519.Ed25519PrivateKey.generate()
    assert identity_of(der(builder.public_key(ed.public_key()).sign(ed, None))).name == "b"


def test_sha1_signature_is_too_weak() -> None:
    # The library will not sign with SHA-1, so the name of the algorithm is changed in the finished bytes.
    sha256_with_rsa, sha1_with_rsa = (bytes.fromhex("2a864886f70d0101") + end for end in (b"\x0b", b"\x05"))
    data = der(crafted(common_names=["b"], key=rsa.generate_private_key(65537, 2048)))
    assert data.count(sha256_with_rsa) == 2
    with pytest.raises(WeakCertificate, match="sha1"):
        identity_of(data.replace(sha256_with_rsa, sha1_with_rsa))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"boat-001",
        b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        b"\x30" * (CERTIFICATE_BYTES_MAX + 1),
    ],
)
def test_bytes_that_are_no_certificate_are_refused(data: bytes) -> None:
    with pytest.raises(BadIdentity):
        identity_of(data)


GOOD = der(crafted(common_names=["boat-001"], uris=[BOAT_URI], hosts=["localhost"]))


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_any_flipped_byte_gives_an_identity_or_a_typed_refusal(position: int, value: int) -> None:
    data = bytearray(GOOD)
    data[position] = value
    try:
        assert is_name(identity_of(bytes(data)).name)
    except BadIdentity:
        pass  # the other right answer


# --- kind, time, names ---------------------------------------------------------------------------


def test_kinds_do_not_mix() -> None:
    boat, node = Identity("boat", "x"), Identity("node", "x")
    require_kind(boat, "boat")
    require_kind(node, "node")
    with pytest.raises(WrongKind, match="node's is needed"):
        require_kind(boat, "node")
    with pytest.raises(WrongKind, match="boat's is needed"):
        require_kind(node, "boat")


def test_a_common_name_alone_never_makes_a_node() -> None:
    with pytest.raises(WrongKind):
        require_kind(identity_of(pem(common_names=["n1"], hosts=["n1.example.com"])), "node")


def test_expired_and_not_yet_valid_are_told_apart() -> None:
    certificate = crafted(common_names=["boat-001"], begins_us=NOW_US, ends_us=NOW_US + DAY_US)
    require_valid_at(certificate, NOW_US + S)
    with pytest.raises(CertificateExpired, match="boat boat-001"):
        require_valid_at(certificate, NOW_US + DAY_US + S)
    with pytest.raises(CertificateNotYetValid, match=r"1970-01-01.*set the clock") as caught:
        require_valid_at(certificate, 12 * S)
    assert caught.value.retriable


def test_names_that_differ_only_in_case_are_refused() -> None:
    registry = NameRegistry(["boat-001"])
    registry.admit("boat-001")
    with pytest.raises(NameTaken, match="boat-001"):
        registry.admit("Boat-001")
    assert "Boat-001" not in registry
    registry.admit("boat-002")
    assert len(registry) == 2
    registry.forget("boat-001")
    registry.admit("Boat-001")
    registry.forget("boat-001")
    assert "Boat-001" in registry


def test_the_registry_has_a_limit_and_takes_only_names() -> None:
    registry = NameRegistry(["a", "b"], names_max=2)
    registry.admit("a")
    with pytest.raises(TooManyNames):
        registry.admit("c")
    with pytest.raises(BadIdentity):
        registry.admit("../a")


# --- the revocation list -------------------------------------------------------------------------


def written(path: Path, text: str, *, at_us: int) -> Path:
    path.write_text(text)
    os.utime(path, ns=(at_us * 1000, at_us * 1000))
    return path


def test_serials_reasons_and_comments_are_read() -> None:
    text = b"# head\n\n0a:FF stolen, 2026\n  beef  # lost\n1\n"
    assert parse_revocations(text) == {0xAFF: "stolen, 2026", 0xBEEF: "lost", 1: ""}


@pytest.mark.parametrize(
    "text", [b"xyz\n", b"abc", b"\xff\n", b"0\n", b"-1\n", b"0x1f\n", b"1\n" + b"f" * 41 + b"\n", b"\0\0\0\0\n"]
)
def test_a_damaged_line_damages_the_list(text: bytes) -> None:
    with pytest.raises(ValueError):
        parse_revocations(text)


def test_a_revoked_serial_is_refused_with_its_reason(tmp_path: Path) -> None:
    path = written(tmp_path / "revoked.txt", "beef stolen\n", at_us=0)
    revoked = RevocationList(path, now_us=10 * S)
    revoked.require_good(1, 10 * S)
    with pytest.raises(CertificateRevoked, match=r"beef.*stolen"):
        revoked.require_good(0xBEEF, 10 * S)


def test_a_changed_file_is_read_again_at_the_next_look(tmp_path: Path) -> None:
    path = written(tmp_path / "revoked.txt", "1\n", at_us=0)
    revoked = RevocationList(path, now_us=10 * S)
    written(path, "1\n2\n", at_us=10 * S)
    revoked.require_good(2, 10 * S + 999_999)
    with pytest.raises(CertificateRevoked):
        revoked.require_good(2, 11 * S)
    assert revoked.statistics().loads == 2


def test_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    revoked = RevocationList(written(tmp_path / "revoked.txt", "1\n", at_us=0), now_us=10 * S)
    assert not any(revoked.refresh(second * S) for second in range(11, 40))
    assert revoked.statistics().loads == 1


def test_a_second_change_in_the_same_tick_is_seen(tmp_path: Path) -> None:
    path = written(tmp_path / "revoked.txt", "1\n", at_us=10 * S)
    revoked = RevocationList(path, now_us=10 * S)
    written(path, "2\n", at_us=10 * S)  # same size, same time stamp, same inode
    assert revoked.refresh(11 * S)
    with pytest.raises(CertificateRevoked):
        revoked.require_good(2, 11 * S)


def test_a_clock_that_was_set_back_does_not_stop_the_looking(tmp_path: Path) -> None:
    path = written(tmp_path / "revoked.txt", "1\n", at_us=0)
    revoked = RevocationList(path, now_us=1000 * S)
    written(path, "1\n2\n", at_us=5 * S)
    assert revoked.refresh(10 * S)


@pytest.mark.parametrize("damage", ["", "1\n2", "not hex\n", "x" * 3000])
def test_a_damaged_file_keeps_the_last_good_list_and_says_so(tmp_path: Path, damage: str) -> None:
    path = written(tmp_path / "revoked.txt", "1 stolen\n", at_us=0)
    revoked = RevocationList(path, now_us=10 * S, bytes_max=2000)
    written(path, damage, at_us=11 * S)
    assert not revoked.refresh(20 * S)
    assert "stays in force" in str(revoked.problem)
    assert str(path) in str(revoked.problem)
    with pytest.raises(CertificateRevoked):
        revoked.require_good(1, 20 * S)
    written(path, "3\n", at_us=21 * S)
    assert revoked.refresh(30 * S)
    assert revoked.problem is None
    assert revoked.statistics().failures == 1


def test_a_file_that_went_away_or_became_something_else_keeps_the_last_good_list(tmp_path: Path) -> None:
    path = written(tmp_path / "revoked.txt", "1\n", at_us=0)
    revoked = RevocationList(path, now_us=10 * S)
    path.unlink()
    revoked.refresh(20 * S)
    assert "No such file" in str(revoked.problem)
    os.mkfifo(path)
    revoked.refresh(30 * S)
    assert "not a file" in str(revoked.problem)
    path.unlink()
    path.mkdir()
    revoked.refresh(40 * S)
    assert revoked.problem is not None
    assert len(revoked) == 1


def test_without_a_first_good_list_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(BadRevocationList, match="No such file"):
        RevocationList(tmp_path / "absent", now_us=0)
    with pytest.raises(BadRevocationList, match="line 1"):
        RevocationList(written(tmp_path / "bad", "zz\n", at_us=0), now_us=0)
    with pytest.raises(BadRevocationList, match="larger"):
        RevocationList(written(tmp_path / "big", "1\n" * 50, at_us=0), now_us=0, bytes_max=99)
