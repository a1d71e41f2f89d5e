"""Authorities in folders, and what real TLS says about the certificates they make."""

from __future__ import annotations

import json
import random
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.pki.certificates import KEY, NOW_US, Files, contexts, crafted, handshake
from tidelog.errors import (
    AuthorityError,
    BadIdentity,
    CertificateExpired,
    CertificateRevoked,
    FileMissing,
    FolderLocked,
    InvalidConfig,
    NameTaken,
    WrongKind,
)
from tidelog.pki.authority import Authority, IssuedCertificate
from tidelog.pki.certificates import (
    BACKDATE_US,
    DAY_US,
    AuthorityOptions,
    LeafOptions,
    Signer,
    certificate_pem,
    make_authority,
    make_leaf,
    new_key,
    new_serial,
    server_names_of,
)
from tidelog.pki.files import locked, replace_file, write_new
from tidelog.pki.identity import Identity, identity_of, parse_certificate, require_kind, serial_hex, validity_us
from tidelog.pki.revocation import RevocationList

MADE_US = NOW_US - 200 * DAY_US
"""Old enough that an authority can have issued something that has expired since."""


def made(folder: Path, kind: str, **options: object) -> Authority:
    return Authority.create(folder, AuthorityOptions(kind=kind, **options), now_us=MADE_US)  # type: ignore[arg-type]


@pytest.fixture
def boats(tmp_path: Path) -> Authority:
    return made(tmp_path / "ca" / "boats", "boat")


@pytest.fixture
def nodes(tmp_path: Path) -> Authority:
    return made(tmp_path / "ca" / "nodes", "node")


def signer_of(authority: Authority) -> Signer:
    key = load_pem_private_key((authority.folder / "ca.key").read_bytes(), None)
    return Signer(authority.certificate, key)  # type: ignore[arg-type]


# --- what is in a certificate --------------------------------------------------------------------


def test_an_authority_signs_leaves_and_nothing_else(boats: Authority) -> None:
    extensions = boats.certificate.extensions
    constraints = extensions.get_extension_for_class(x509.BasicConstraints)
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)
    assert usage.critical
    assert (usage.value.key_cert_sign, usage.value.crl_sign, usage.value.digital_signature) == (True, True, False)
    with pytest.raises(BadIdentity):
        identity_of(boats.certificate_pem)


def test_a_boat_is_a_client_and_a_node_both(boats: Authority, nodes: Authority) -> None:
    def usages(issued: IssuedCertificate) -> list[x509.ObjectIdentifier]:
        certificate = parse_certificate(issued.certificate_pem)
        assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert not certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
        return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)

    assert usages(boats.issue("boat-001", now_us=NOW_US)) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert set(usages(nodes.issue("n1", now_us=NOW_US))) == {
        ExtendedKeyUsageOID.CLIENT_AUTH,
        ExtendedKeyUsageOID.SERVER_AUTH,
    }


def test_a_certificate_names_its_holder_twice_and_alike(tmp_path: Path) -> None:
    authority = made(tmp_path / "boats", "boat", fleet="north-sea")
    issued = authority.issue("boat-001", now_us=NOW_US)
    certificate = parse_certificate(issued.certificate_pem)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["spiffe://north-sea/boat/boat-001"]
    assert certificate.subject.rfc4514_string() == "CN=boat-001"
    assert identity_of(issued.certificate_pem, fleet="north-sea") == issued.identity == Identity("boat", "boat-001")


def test_server_names_are_hosts_and_addresses(nodes: Authority) -> None:
    wanted = ["Cloud.Example.com", "127.0.0.1", "::1", "cloud.example.com"]
    issued = nodes.issue("n1", now_us=NOW_US, server_names=wanted)
    assert set(server_names_of(parse_certificate(issued.certificate_pem))) == {"cloud.example.com", "127.0.0.1", "::1"}


@pytest.mark.parametrize("host", ["*.example.com", "", "a b", "a..b", "-a", "a/b", "b\u00f6", "a\n", "x" * 254, "a:1"])
def test_a_server_name_that_is_no_host_is_refused(nodes: Authority, host: str) -> None:
    with pytest.raises(InvalidConfig):
        nodes.issue("n1", now_us=NOW_US, server_names=[host])


def test_a_boat_takes_no_server_name(boats: Authority) -> None:
    with pytest.raises(InvalidConfig, match="boat serves nobody"):
        boats.issue("boat-001", now_us=NOW_US, server_names=["localhost"])


def test_only_the_nodes_authority_signs_operators(boats: Authority, nodes: Authority) -> None:
    with pytest.raises(AuthorityError, match="that of the nodes"):
        boats.issue("anna", kind="operator", now_us=NOW_US)
    with pytest.raises(AuthorityError, match="signs no boat"):
        nodes.issue("boat-001", kind="boat", now_us=NOW_US)
    issued = nodes.issue("anna", kind="operator", now_us=NOW_US)
    assert identity_of(issued.certificate_pem) == Identity("operator", "anna")
    assert [(row.kind, row.name) for row in Authority(nodes.folder).certificates(NOW_US)] == [("operator", "anna")]


def test_a_leaf_begins_early_and_never_outlives_its_authority(boats: Authority) -> None:
    begins_us, ends_us = validity_us(parse_certificate(boats.issue("a", now_us=NOW_US, days=10).certificate_pem))
    assert NOW_US - BACKDATE_US - 1_000_000 < begins_us <= NOW_US - BACKDATE_US
    assert NOW_US + 10 * DAY_US - 1_000_000 < ends_us <= NOW_US + 10 * DAY_US
    long = boats.issue("b", now_us=NOW_US, days=36_500)
    assert long.not_after_us == validity_us(boats.certificate)[1]


def test_an_expired_authority_issues_nothing(boats: Authority) -> None:
    with pytest.raises(CertificateExpired):
        boats.issue("boat-001", now_us=MADE_US + 3651 * DAY_US)


def test_serials_come_from_the_generator_and_are_positive() -> None:
    assert new_serial(random.Random(7).randbytes) == new_serial(random.Random(7).randbytes)
    assert new_serial(lambda count: bytes(count)) > 0
    assert new_serial(lambda count: b"\xff" * count).bit_length() == 159


@pytest.mark.parametrize("options", [{"fleet": "No Fleet"}, {"fleet": ""}, {"fleet": "a/b"}, {"days": 0}])
def test_an_authority_with_impossible_options_is_not_made(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig):
        made(tmp_path / "boats", "boat", **options)
    assert list(tmp_path.iterdir()) == []


# --- the folder ----------------------------------------------------------------------------------


def test_files_have_the_right_names_and_modes(boats: Authority) -> None:
    issued = boats.issue("boat-001", now_us=NOW_US)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in boats.folder.rglob("*")}
    assert modes.pop(".lock") == 0o600
    assert modes == {
        "ca.crt": 0o644,
        "ca.key": 0o600,
        "index": 0o644,
        "issued": 0o755,
        f"boat-001-{serial_hex(issued.serial)}.crt": 0o644,
        "revoked.txt": 0o644,
    }
    events = [json.loads(line)["event"] for line in (boats.folder / "index").read_text().splitlines()]
    assert events == ["created", "issued"]


def test_an_authority_is_never_overwritten(boats: Authority) -> None:
    before = (boats.folder / "ca.key").read_bytes()
    with pytest.raises(AuthorityError, match="never overwritten"):
        made(boats.folder, "boat")
    assert (boats.folder / "ca.key").read_bytes() == before
    assert [path.name for path in boats.folder.parent.iterdir()] == ["boats"]


def test_a_new_file_never_replaces_one_and_leaves_no_litter(tmp_path: Path) -> None:
    write_new(tmp_path / "k.key", b"one", mode=0o600)
    with pytest.raises(AuthorityError, match="never overwritten"):
        write_new(tmp_path / "k.key", b"two", mode=0o600)
    replace_file(tmp_path / "c.crt", b"one")
    replace_file(tmp_path / "c.crt", b"two")
    with pytest.raises(FileMissing):
        write_new(tmp_path / "absent" / "k.key", b"one")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"k.key": b"one", "c.crt": b"two"}


def test_a_disk_without_hard_links_is_served_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    write_new(tmp_path / "k.key", b"one", mode=0o600)
    with pytest.raises(AuthorityError, match="never overwritten"):
        write_new(tmp_path / "k.key", b"two", mode=0o600)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"k.key": b"one"}
    assert stat.S_IMODE((tmp_path / "k.key").stat().st_mode) == 0o600


def test_a_failed_create_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(Exception, match="No space"):
        made(tmp_path / "boats", "boat")
    assert list(tmp_path.iterdir()) == []


def test_a_passphrase_is_needed_to_sign_and_not_to_list(tmp_path: Path) -> None:
    options = AuthorityOptions(kind="boat")
    Authority.create(tmp_path / "boats", options, now_us=NOW_US, passphrase=b"s3cret")
    assert b"ENCRYPTED" in (tmp_path / "boats" / "ca.key").read_bytes()
    assert Authority(tmp_path / "boats").certificates(NOW_US) == []
    with pytest.raises(AuthorityError, match="has a passphrase"):
        Authority(tmp_path / "boats").issue("a", now_us=NOW_US)
    with pytest.raises(AuthorityError, match="wrong"):
        Authority(tmp_path / "boats", passphrase=b"guess").issue("a", now_us=NOW_US)
    assert Authority(tmp_path / "boats", passphrase=b"s3cret").issue("a", now_us=NOW_US).key_pem


def test_an_unneeded_passphrase_does_no_harm(boats: Authority) -> None:
    assert Authority(boats.folder, passphrase=b"unneeded").issue("a", now_us=NOW_US).key_pem


def test_a_foreign_key_beside_the_certificate_is_noticed(boats: Authority, nodes: Authority) -> None:
    (boats.folder / "ca.key").write_bytes((nodes.folder / "ca.key").read_bytes())
    with pytest.raises(AuthorityError, match="not the key"):
        boats.issue("a", now_us=NOW_US)
    assert boats.certificates(NOW_US) == []


def test_no_authority_and_a_foreign_one_are_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(AuthorityError, match="tidelog ca init"):
        Authority(tmp_path)
    (tmp_path / "ca.crt").write_bytes(certificate_pem(crafted(common_names=["step-ca"], ca=True)))
    with pytest.raises(AuthorityError, match="not made by"):
        Authority(tmp_path)


@pytest.mark.parametrize("line", ["{", "[]", "5", '{"event": "issued"}', '{"event": 1, "at_us": 2, "serial": "a"}'])
def test_a_damaged_index_is_said_with_its_line(boats: Authority, line: str) -> None:
    with open(boats.folder / "index", "a") as index:
        index.write(line + "\n")
    with pytest.raises(AuthorityError, match="line 2"):
        boats.certificates(NOW_US)


def test_two_commands_at_once_do_not_mix(boats: Authority) -> None:
    with locked(boats.folder), pytest.raises(FolderLocked):
        boats.issue("a", now_us=NOW_US)
    boats.issue("a", now_us=NOW_US)


# --- names, renewal, revocation ------------------------------------------------------------------


def test_a_name_is_issued_once_and_in_one_case(boats: Authority) -> None:
    boats.issue("boat-001", now_us=NOW_US)
    with pytest.raises(NameTaken, match="renew it"):
        boats.issue("boat-001", now_us=NOW_US)
    with pytest.raises(NameTaken, match="case"):
        boats.issue("BOAT-001", now_us=NOW_US)
    with pytest.raises(BadIdentity):
        boats.issue("../boat", now_us=NOW_US)
    assert len(boats.certificates(NOW_US)) == 1


def test_an_expired_or_revoked_name_can_be_issued_again(boats: Authority) -> None:
    boats.issue("boat-001", now_us=MADE_US, days=30)
    boats.issue("boat-001", now_us=NOW_US)
    boats.revoke("boat-001", now_us=NOW_US)
    boats.issue("boat-001", now_us=NOW_US)
    assert [row.status for row in boats.certificates(NOW_US)] == ["expired", "revoked", "valid"]


def test_renewal_keeps_name_and_key_and_changes_the_serial(nodes: Authority) -> None:
    first = nodes.issue("n1", now_us=MADE_US, days=30, server_names=["localhost", "127.0.0.1"])
    second = nodes.renew("n1", now_us=NOW_US, days=90)
    before, after = parse_certificate(first.certificate_pem), parse_certificate(second.certificate_pem)
    assert second.identity == first.identity
    assert second.serial != first.serial
    assert second.key_pem is None
    assert after.public_key() == before.public_key()
    assert server_names_of(after) == server_names_of(before)
    third = nodes.renew("n1", now_us=NOW_US, new_keys=True, server_names=["other"])
    assert third.key_pem is not None
    assert parse_certificate(third.certificate_pem).public_key() != after.public_key()
    assert [row.status for row in nodes.certificates(NOW_US)] == ["expired", "replaced", "valid"]


def test_what_was_never_issued_or_is_revoked_is_not_renewed(boats: Authority) -> None:
    with pytest.raises(AuthorityError, match="no certificate"):
        boats.renew("boat-001", now_us=NOW_US)
    boats.issue("boat-001", now_us=NOW_US)
    boats.revoke("boat-001", now_us=NOW_US)
    with pytest.raises(AuthorityError, match="revoked"):
        boats.renew("boat-001", now_us=NOW_US)


def test_a_revocation_reaches_the_list_that_servers_read(boats: Authority) -> None:
    first = boats.issue("boat-001", now_us=NOW_US)
    other = boats.issue("boat-002", now_us=NOW_US)
    second = boats.renew("boat-001", now_us=NOW_US)
    revoked = RevocationList(boats.folder / "revoked.txt", now_us=NOW_US)
    for issued in (first, second, other):
        revoked.require_good(issued.serial, NOW_US)
    rows = boats.revoke("boat-001", now_us=NOW_US, reason="stolen in Kiel")
    assert {row.serial for row in rows} == {serial_hex(first.serial), serial_hex(second.serial)}
    later_us = NOW_US + 30_000_000
    for issued in (first, second):
        with pytest.raises(CertificateRevoked, match="stolen in Kiel"):
            revoked.require_good(issued.serial, later_us)
    revoked.require_good(other.serial, later_us)
    assert [row.reason for row in boats.certificates(NOW_US)] == ["stolen in Kiel", "", "stolen in Kiel"]


def test_one_serial_can_be_revoked_and_twice_is_once(boats: Authority) -> None:
    first = boats.issue("boat-001", now_us=NOW_US)
    boats.renew("boat-001", now_us=NOW_US)
    text = serial_hex(first.serial).upper()
    for _ in range(2):
        assert [row.status for row in boats.revoke(text, now_us=NOW_US)] == ["revoked"]
    assert [row.status for row in boats.certificates(NOW_US)] == ["revoked", "valid"]
    assert (boats.folder / "revoked.txt").read_text().count(serial_hex(first.serial)) == 1


def test_what_was_written_by_hand_counts_and_stays(boats: Authority) -> None:
    issued = boats.issue("boat-001", now_us=NOW_US)
    boats.issue("boat-002", now_us=NOW_US)
    path = boats.folder / "revoked.txt"
    path.write_text(f"# mine\n{serial_hex(issued.serial)} by hand\n")
    assert [row.status for row in boats.certificates(NOW_US)] == ["revoked", "valid"]
    boats.revoke("boat-002", now_us=NOW_US)
    assert path.read_text().startswith("# mine\n")
    path.write_text("half a li")
    with pytest.raises(AuthorityError, match="repair it by hand"):
        boats.revoke("boat-002", now_us=NOW_US)


@pytest.mark.parametrize("reason", ["two\nlines", "a # b", "x" * 201])
def test_a_reason_is_one_short_line(boats: Authority, reason: str) -> None:
    boats.issue("boat-001", now_us=NOW_US)
    with pytest.raises(AuthorityError, match="one line"):
        boats.revoke("boat-001", now_us=NOW_US, reason=reason)


def test_unknown_names_and_serials_are_not_revoked(boats: Authority) -> None:
    for unknown in ("boat-009", "abcdef", ""):
        with pytest.raises(AuthorityError, match="no certificate"):
            boats.revoke(unknown, now_us=NOW_US)


def test_days_left_are_counted(boats: Authority) -> None:
    boats.issue("a", now_us=MADE_US, days=100)
    boats.issue("b", now_us=NOW_US, days=20)
    boats.issue("c", now_us=NOW_US, days=400)
    rows = {row.name: (row.status, row.days_left) for row in boats.certificates(NOW_US + DAY_US // 2)}
    assert rows == {"a": ("expired", -101), "b": ("expiring", 19), "c": ("valid", 399)}


# --- real handshakes -----------------------------------------------------------------------------


@dataclass
class Harbour:
    """A server of the nodes' authority that lets in what the boats' authority signed."""

    folder: Path
    boats: Authority
    nodes: Authority

    def __post_init__(self) -> None:
        issued = self.nodes.issue("cloud", now_us=NOW_US, server_names=["localhost", "127.0.0.1"])
        self.server = self.files("cloud", issued)

    def files(self, name: str, issued: IssuedCertificate, key: bytes | None = None) -> Files:
        secret = issued.key_pem or key
        assert secret is not None
        return Files.write(self.folder, name, issued.certificate_pem, secret)

    def meet(
        self,
        client: Files | None,
        *,
        client_ca: bytes | None = None,
        hostname: str = "localhost",
        strict: bool = True,
    ) -> Identity:
        server_context, client_context = contexts(
            self.server,
            client,
            server_ca=self.nodes.certificate_pem,
            client_ca=client_ca or self.boats.certificate_pem,
            strict=strict,
        )
        return identity_of(handshake(server_context, client_context, hostname=hostname))


@pytest.fixture
def harbour(tmp_path: Path, boats: Authority, nodes: Authority) -> Harbour:
    return Harbour(tmp_path, boats, nodes)


def test_a_boat_is_let_in_by_the_boats_authority_under_its_name(harbour: Harbour) -> None:
    boat = harbour.files("boat", harbour.boats.issue("boat-001", now_us=NOW_US))
    assert harbour.meet(boat) == Identity("boat", "boat-001")
    assert harbour.meet(boat, hostname="127.0.0.1") == Identity("boat", "boat-001")


def test_a_renewed_certificate_works_with_the_old_key(harbour: Harbour) -> None:
    first = harbour.boats.issue("boat-001", now_us=MADE_US, days=30)
    renewed = harbour.boats.renew("boat-001", now_us=NOW_US)
    assert harbour.meet(harbour.files("boat", renewed, first.key_pem)) == Identity("boat", "boat-001")


def test_a_boat_is_refused_where_nodes_connect_and_a_node_where_boats_do(harbour: Harbour) -> None:
    boat = harbour.files("boat", harbour.boats.issue("boat-001", now_us=NOW_US))
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        harbour.meet(boat, client_ca=harbour.nodes.certificate_pem)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        harbour.meet(harbour.server)
    # Even where an operator trusts both authorities at one listener, the kind still tells them apart.
    both = harbour.boats.certificate_pem + harbour.nodes.certificate_pem
    with pytest.raises(WrongKind):
        require_kind(harbour.meet(harbour.server, client_ca=both), "boat")
    with pytest.raises(WrongKind):
        require_kind(harbour.meet(boat, client_ca=both), "node")


def test_a_boat_cannot_pass_for_the_server(harbour: Harbour) -> None:
    boat = harbour.files("boat", harbour.boats.issue("boat-001", now_us=NOW_US))
    harbour.server = boat
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        harbour.meet(boat)


def test_a_server_is_called_only_by_its_names(harbour: Harbour) -> None:
    boat = harbour.files("boat", harbour.boats.issue("boat-001", now_us=NOW_US))
    with pytest.raises(ssl.SSLError, match="Hostname mismatch"):
        harbour.meet(boat, hostname="cloud")


def expired(harbour: Harbour) -> Files:
    return harbour.files("boat", harbour.boats.issue("boat-001", now_us=MADE_US, days=30))


def not_yet_valid(harbour: Harbour) -> Files:
    return harbour.files("boat", harbour.boats.issue("boat-001", now_us=NOW_US + 30 * DAY_US))


def other_authority_of_the_same_name(harbour: Harbour) -> Files:
    other = made(harbour.folder / "other", "boat")
    assert other.certificate.subject == harbour.boats.certificate.subject
    return harbour.files("boat", other.issue("boat-001", now_us=NOW_US))


def self_signed(harbour: Harbour) -> Files:
    certificate = crafted(common_names=["boat-001"], usages=[ExtendedKeyUsageOID.CLIENT_AUTH])
    return Files.write(harbour.folder, "boat", certificate_pem(certificate), KEY)


def good_for_servers_only(harbour: Harbour) -> Files:
    usages = [ExtendedKeyUsageOID.SERVER_AUTH]
    certificate = crafted(common_names=["boat-001"], usages=usages, signer=signer_of(harbour.boats))
    return Files.write(harbour.folder, "boat", certificate_pem(certificate), KEY)


def signed_by_a_boat(harbour: Harbour) -> Files:
    boat = harbour.boats.issue("boat-001", now_us=NOW_US)
    assert boat.key_pem is not None
    key = load_pem_private_key(boat.key_pem, None)
    leaf = _leaf(Signer(parse_certificate(boat.certificate_pem), key))  # type: ignore[arg-type]
    return Files.write(harbour.folder, "boat", certificate_pem(leaf) + boat.certificate_pem, KEY)


def signed_by_an_intermediate(harbour: Harbour) -> Files:
    """Its own authority's path length of 0 forbids it."""
    key = new_key()
    name = "intermediate"
    intermediate = crafted(common_names=[name], ca=True, key=key, signer=signer_of(harbour.boats))
    chain = certificate_pem(_leaf(Signer(intermediate, key))) + certificate_pem(intermediate)
    return Files.write(harbour.folder, "boat", chain, KEY)


def intermediate_missing(harbour: Harbour) -> Files:
    files = signed_by_an_intermediate(harbour)
    leaf = parse_certificate(files.certificate.read_bytes())
    files.certificate.write_bytes(certificate_pem(leaf))
    return files


def _leaf(signer: Signer) -> x509.Certificate:
    return make_leaf(
        LeafOptions(identity=Identity("boat", "boat-002")),
        signer=signer,
        fleet="fleet",
        public_key=KEY.public_key(),
        now_us=NOW_US,
        random_bytes=random.Random(1).randbytes,
    )


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        (expired, "has expired"),
        (not_yet_valid, "not yet valid"),
        (other_authority_of_the_same_name, "unable to get local issuer"),
        (self_signed, "self-signed"),
        (good_for_servers_only, "purpose"),
        (signed_by_a_boat, "invalid CA certificate"),
        (signed_by_an_intermediate, "path length"),
        (intermediate_missing, "unable to get local issuer"),
    ],
)
def test_a_handshake_refuses(harbour: Harbour, bad: Callable[[Harbour], Files], cause: str) -> None:
    # Not strict, so that each is refused for its own fault and not for a missing nicety.
    with pytest.raises(ssl.SSLCertVerificationError, match=cause):
        harbour.meet(bad(harbour), strict=False)


def test_a_handshake_without_a_certificate_is_refused(harbour: Harbour) -> None:
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        harbour.meet(None)


def test_what_a_handshake_lets_through_the_identity_refuses(harbour: Harbour) -> None:
    # TLS has no opinion on names: two of them, or a path, are ours to refuse.
    for names in (["boat-001", "boat-002"], ["../../etc/x"]):
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = crafted(common_names=names, usages=usages, signer=signer_of(harbour.boats))
        files = Files.write(harbour.folder, "boat", certificate_pem(certificate), KEY)
        with pytest.raises(BadIdentity):
            harbour.meet(files, strict=False)


def test_the_authority_itself_cannot_log_in_as_a_boat(harbour: Harbour) -> None:
    signer = make_authority(AuthorityOptions(kind="boat"), now_us=NOW_US, random_bytes=random.Random(2).randbytes)
    files = Files.write(harbour.folder, "ca-as-boat", certificate_pem(signer.certificate), signer.key)
    with pytest.raises((ssl.SSLError, BadIdentity)):
        harbour.meet(files, client_ca=certificate_pem(signer.certificate))
