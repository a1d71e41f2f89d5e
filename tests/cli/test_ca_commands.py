"""`tidelog ca`, from the first authority to a revoked boat."""

from __future__ import annotations

import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.cli.commands import Tidelog, snapshot
from tests.pki.certificates import Files, contexts, handshake
from tidelog.errors import CertificateRevoked
from tidelog.pki.certificates import server_names_of
from tidelog.pki.identity import Identity, identity_of, parse_certificate
from tidelog.pki.revocation import RevocationList

NOW_US = 1_900_000_000_000_000
CLOUD = ("cloud", "--node", "--server-name", "localhost", "--server-name", "127.0.0.1")


@pytest.fixture
def fleet(tidelog: Tidelog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tidelog:
    """The command, in a folder that has authorities in ./ca."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDELOG_CA", raising=False)
    monkeypatch.delenv("TIDELOG_CA_PASSPHRASE", raising=False)
    tidelog("ca", "init")
    return tidelog


def mode(path: str) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def test_help_lists_the_commands_and_loads_no_cryptography(tidelog: Tidelog) -> None:
    out = tidelog("ca", "--help").out
    assert all(f"\n  {name} " in out for name in ("init", "issue", "renew", "revoke", "list"))
    code = "import sys; from tidelog.cli.main import run; run(['ca', '--help']); print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_init_makes_both_trees_and_never_again(fleet: Tidelog) -> None:
    for tree in ("boats", "nodes"):
        assert sorted(path.name for path in Path("ca", tree).iterdir()) == [
            "ca.crt",
            "ca.key",
            "index",
            "issued",
            "revoked.txt",
        ]
        assert mode(f"ca/{tree}/ca.key") == 0o600
    before = snapshot(Path("ca"))
    assert "never overwritten" in fleet("ca", "init", code=2).err
    assert snapshot(Path("ca")) == before


def test_init_makes_one_tree_when_asked(fleet: Tidelog) -> None:
    made = fleet("ca", "init", "elsewhere", "--only", "nodes", "--fleet", "north", "--days", "30", "--json").json
    assert [(one["kind"], one["fleet"]) for one in made["authorities"]] == [("node", "north")]
    assert [path.name for path in Path("elsewhere").iterdir()] == ["nodes"]
    assert "tidelog ca init" in fleet("ca", "issue", "b", "--ca", "elsewhere", code=2).err
    # The half that was missing can follow; the other half is in nobody's way.
    fleet("ca", "init", "elsewhere", "--only", "boats")
    assert "fleet" in fleet("ca", "init", "third", "--fleet", "Not A Fleet", code=2).err
    assert not Path("third").exists()


def test_a_boat_gets_the_files_that_its_configuration_names(fleet: Tidelog) -> None:
    issued = fleet("ca", "issue", "boat-001", "--json").json
    assert issued["files"] == ["boat-001.crt", "boat-001.key", "ca.crt"]
    assert (issued["kind"], issued["name"], issued["fleet"]) == ("boat", "boat-001", "fleet")
    assert [mode(name) for name in issued["files"]] == [0o644, 0o600, 0o644]
    assert identity_of(Path("boat-001.crt").read_bytes()) == Identity("boat", "boat-001")
    assert Path("ca.crt").read_bytes() == Path("ca/nodes/ca.crt").read_bytes()
    # A second boat into the same folder shares its ca.crt.
    assert "boat boat-002" in fleet("ca", "issue", "boat-002").out


def test_boat_and_cloud_meet_over_tls_with_the_files_as_written(fleet: Tidelog) -> None:
    fleet("ca", "issue", "boat-001", "--out", "boat")
    fleet("ca", "issue", *CLOUD, "--out", "cloud")
    assert sorted(path.name for path in Path("cloud").iterdir()) == [
        "ca.crt",
        "client-ca.crt",
        "cloud.crt",
        "cloud.key",
    ]
    server_context, client_context = contexts(
        Files(Path("cloud/cloud.crt"), Path("cloud/cloud.key")),
        Files(Path("boat/boat-001.crt"), Path("boat/boat-001.key")),
        server_ca=Path("boat/ca.crt").read_bytes(),
        client_ca=Path("cloud/client-ca.crt").read_bytes(),
    )
    assert identity_of(handshake(server_context, client_context)) == Identity("boat", "boat-001")


def test_a_node_without_a_server_name_is_warned_about(fleet: Tidelog) -> None:
    result = fleet("ca", "issue", "n1", "--node")
    assert "--server-name" in result.err
    assert identity_of(Path("n1.crt").read_bytes()) == Identity("node", "n1")


@pytest.mark.parametrize("name", ["../x", "", "a b", "*", "b\u043eat", "x" * 64, ".hidden"])
def test_a_bad_name_is_one_sentence(fleet: Tidelog, name: str) -> None:
    before = snapshot(Path())
    result = fleet("ca", "issue", name, code=2)
    assert "is not a name" in result.err
    assert result.err.count("\n") == 1
    assert {path: data for path, data in snapshot(Path()).items() if not path.endswith(".lock")} == before


@pytest.mark.parametrize("arguments", [["--days", "0"], ["--days", "x"], ["--server-name", "h"], ["--ca", "nowhere"]])
def test_a_wrong_call_is_exit_2_and_makes_nothing(fleet: Tidelog, arguments: list[str]) -> None:
    fleet("ca", "issue", "boat-001", *arguments, code=2)
    assert fleet("ca", "list", "--json").json["certificates"] == []


def test_no_key_is_overwritten_and_nothing_is_issued_in_vain(fleet: Tidelog) -> None:
    Path("boat-001.key").write_text("precious")
    assert "never overwritten" in fleet("ca", "issue", "boat-001", code=2).err
    assert Path("boat-001.key").read_text() == "precious"
    assert "another authority" in fleet("ca", "issue", "boat-001", "--out", "ca/boats", code=2).err
    assert fleet("ca", "list", "--json").json["certificates"] == []


def test_names_are_issued_once_and_in_one_case(fleet: Tidelog) -> None:
    fleet("ca", "issue", "boat-001", "--out", "a")
    assert "renew it" in fleet("ca", "issue", "boat-001", "--out", "b", code=2).err
    assert "case" in fleet("ca", "issue", "Boat-001", "--out", "b", code=2).err
    assert not Path("b").exists()


def test_renew_keeps_name_and_key_and_changes_the_serial(fleet: Tidelog) -> None:
    first = fleet("ca", "issue", "boat-001", "--json").json
    key = Path("boat-001.key").read_bytes()
    second = fleet("ca", "renew", "boat-001", "--days", "10", "--json").json
    assert (second["name"], second["files"]) == ("boat-001", ["boat-001.crt", "ca.crt"])
    assert second["serial"] != first["serial"]
    assert Path("boat-001.key").read_bytes() == key
    written = parse_certificate(Path("boat-001.crt").read_bytes())
    assert f"{written.serial_number:x}" == second["serial"]
    rows = fleet("ca", "list", "--json").json["certificates"]
    assert [(row["status"], row["days_left"]) for row in rows] == [("replaced", 729), ("expiring", 9)]


def test_renew_with_a_new_key_goes_to_a_new_folder(fleet: Tidelog) -> None:
    fleet("ca", "issue", "boat-001")
    assert "never overwritten" in fleet("ca", "renew", "boat-001", "--new-key", code=2).err
    fleet("ca", "renew", "boat-001", "--new-key", "--out", "new")
    assert mode("new/boat-001.key") == 0o600
    # What lies here is for the key of before: a certificate for the new key would not fit it.
    assert "another key" in fleet("ca", "renew", "boat-001", code=2).err


def test_renewing_a_node_keeps_its_server_names(fleet: Tidelog) -> None:
    fleet("ca", "issue", *CLOUD)
    fleet("ca", "renew", "cloud", "--node")
    assert server_names_of(parse_certificate(Path("cloud.crt").read_bytes())) == ["localhost", "127.0.0.1"]
    assert "no certificate" in fleet("ca", "renew", "cloud", "--out", "x", code=2).err


def test_revoke_by_name_shows_in_the_list_and_in_the_file(fleet: Tidelog) -> None:
    serial = int(fleet("ca", "issue", "boat-001", "--json").json["serial"], 16)
    revoked = fleet("ca", "revoke", "boat-001", "--reason", "stolen", "--json").json
    assert [row["status"] for row in revoked["revoked"]] == ["revoked"]
    with pytest.raises(CertificateRevoked, match="stolen"):
        RevocationList(revoked["revocation_list"], now_us=NOW_US).require_good(serial, NOW_US)
    shown = fleet("ca", "list").out
    assert "revoked" in shown
    assert "stolen" in shown
    assert "issue a new one" in fleet("ca", "renew", "boat-001", code=2).err
    fleet("ca", "issue", "boat-001", "--out", "again")


def test_revoke_by_serial_finds_the_tree_itself(fleet: Tidelog) -> None:
    serial = fleet("ca", "issue", *CLOUD, "--json").json["serial"]
    fleet("ca", "issue", "boat-001")
    assert "node cloud is revoked" in fleet("ca", "revoke", serial.upper()).out
    statuses = {row["name"]: row["status"] for row in fleet("ca", "list", "--json").json["certificates"]}
    assert statuses == {"boat-001": "valid", "cloud": "revoked"}


def test_revoking_a_stranger_says_where_to_look(fleet: Tidelog) -> None:
    fleet("ca", "issue", *CLOUD)
    assert "add --node" in fleet("ca", "revoke", "cloud", code=2).err
    assert "tidelog ca list" in fleet("ca", "revoke", "boat-009", code=2).err


def test_an_operator_is_signed_by_the_nodes_authority_and_is_a_client_only(fleet: Tidelog) -> None:
    issued = fleet("ca", "issue", "anna", "--operator", "--json").json
    assert (issued["kind"], issued["files"]) == ("operator", ["anna.crt", "anna.key", "ca.crt"])
    assert identity_of(Path("anna.crt").read_bytes(), fleet="fleet") == Identity("operator", "anna")
    certificate = parse_certificate(Path("anna.crt").read_bytes())
    certificate.verify_directly_issued_by(parse_certificate(Path("ca/nodes/ca.crt").read_bytes()))
    usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usages) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert "serves nobody" in fleet("ca", "issue", "otto", "--operator", "--server-name", "h", code=2).err
    assert "exclude each other" in fleet("ca", "issue", "otto", "--operator", "--node", code=2).err
    assert len(fleet("ca", "list", "--json").json["certificates"]) == 1


def test_an_operator_cannot_pass_for_a_server(fleet: Tidelog) -> None:
    fleet("ca", "issue", "anna", "--operator", "--out", "anna")
    fleet("ca", "issue", "boat-001", "--out", "boat")
    server_context, client_context = contexts(
        Files(Path("anna/anna.crt"), Path("anna/anna.key")),
        Files(Path("boat/boat-001.crt"), Path("boat/boat-001.key")),
        server_ca=Path("boat/ca.crt").read_bytes(),
        client_ca=Path("ca/boats/ca.crt").read_bytes(),
    )
    client_context.check_hostname = False
    with pytest.raises(ssl.SSLError, match="purpose"):
        handshake(server_context, client_context)


def test_an_operator_and_a_node_may_share_a_name_and_are_told_apart(fleet: Tidelog) -> None:
    fleet("ca", "issue", "n1", "--node", "--out", "node")
    fleet("ca", "issue", "n1", "--operator", "--out", "operator")
    renewed = fleet("ca", "renew", "n1", "--operator", "--out", "operator", "--json").json
    assert renewed["kind"] == "operator"
    assert identity_of(Path("operator/n1.crt").read_bytes()) == Identity("operator", "n1")
    assert identity_of(Path("node/n1.crt").read_bytes()) == Identity("node", "n1")
    assert "operator n1 is revoked" in fleet("ca", "revoke", "n1", "--operator").out
    rows = fleet("ca", "list", "--json").json["certificates"]
    assert [(row["kind"], row["status"]) for row in rows] == [
        ("node", "valid"),
        ("operator", "revoked"),
        ("operator", "revoked"),
    ]
    # Its serials are on the list that nodes read.
    listed = RevocationList("ca/nodes/revoked.txt", now_us=NOW_US)
    with pytest.raises(CertificateRevoked):
        listed.require_good(int(renewed["serial"], 16), NOW_US)
    fleet("ca", "issue", "n1", "--operator", "--out", "again")


def test_an_operator_is_found_by_serial_and_not_by_name_alone(fleet: Tidelog) -> None:
    serial = fleet("ca", "issue", "anna", "--operator", "--json").json["serial"]
    assert "add --operator" in fleet("ca", "revoke", "anna", code=2).err
    assert "add --operator" in fleet("ca", "revoke", "anna", "--node", code=2).err
    assert "no certificate" in fleet("ca", "renew", "anna", "--node", "--out", "x", code=2).err
    assert "operator anna is revoked" in fleet("ca", "revoke", serial).out


def test_a_client_is_signed_by_the_nodes_authority_and_is_no_operator(fleet: Tidelog) -> None:
    issued = fleet("ca", "issue", "plotter", "--client", "--json").json
    assert (issued["kind"], issued["files"]) == ("client", ["plotter.crt", "plotter.key", "ca.crt"])
    assert identity_of(Path("plotter.crt").read_bytes(), fleet="fleet") == Identity("client", "plotter")
    certificate = parse_certificate(Path("plotter.crt").read_bytes())
    certificate.verify_directly_issued_by(parse_certificate(Path("ca/nodes/ca.crt").read_bytes()))
    usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usages) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert "a client serves nobody" in fleet("ca", "issue", "otto", "--client", "--server-name", "h", code=2).err
    assert "exclude each other" in fleet("ca", "issue", "otto", "--client", "--operator", code=2).err
    assert [row["kind"] for row in fleet("ca", "list", "--json").json["certificates"]] == ["client"]
    assert "add --client" in fleet("ca", "revoke", "plotter", "--operator", code=2).err
    assert fleet("ca", "renew", "plotter", "--client", "--json").json["kind"] == "client"
    assert "client plotter is revoked" in fleet("ca", "revoke", "plotter", "--client").out


def test_list_shows_expiry_and_days_left(fleet: Tidelog) -> None:
    fleet("ca", "issue", "boat-001", "--days", "20")
    listing = fleet("ca", "list", "--json").json
    assert [one["kind"] for one in listing["authorities"]] == ["boat", "node"]
    assert all(one["days_left"] in (3649, 3650) for one in listing["authorities"])
    (row,) = listing["certificates"]
    assert (row["name"], row["status"], row["days_left"]) == ("boat-001", "expiring", 19)
    assert row["not_after"].endswith("Z")
    shown = fleet("ca", "list").out
    assert "days left" in shown
    assert row["serial"] in shown
    assert row["not_after"][:10] in shown


def test_list_without_an_authority_says_how_to_make_one(tidelog: Tidelog, tmp_path: Path) -> None:
    assert "tidelog ca init" in tidelog("ca", "list", "--ca", tmp_path, code=2).err


def test_the_authority_of_the_nodes_may_be_elsewhere(fleet: Tidelog) -> None:
    fleet("ca", "init", "only-boats", "--only", "boats")
    result = fleet("ca", "issue", "boat-001", "--ca", "only-boats", "--out", "a")
    assert "no ca.crt was written" in result.err
    Path("only-boats/nodes").mkdir()
    Path("only-boats/nodes/ca.crt").write_bytes(Path("ca/nodes/ca.crt").read_bytes())
    fleet("ca", "issue", "boat-002", "--ca", "only-boats", "--out", "b")
    assert Path("b/ca.crt").exists()
    assert len(fleet("ca", "list", "--ca", "only-boats", "--json").json["certificates"]) == 2


def test_a_passphrase_from_a_file_or_the_environment(fleet: Tidelog, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("secret").write_text("open sesame\n")
    fleet("ca", "init", "locked", "--passphrase-file", "secret")
    assert "ENCRYPTED" in Path("locked/boats/ca.key").read_text()
    monkeypatch.setenv("TIDELOG_CA", "locked")
    assert "--passphrase-file" in fleet("ca", "issue", "boat-001", code=2).err
    fleet("ca", "issue", "boat-001", "--passphrase-file", "secret")
    monkeypatch.setenv("TIDELOG_CA_PASSPHRASE", "open sesame")
    fleet("ca", "issue", "boat-002")
    monkeypatch.setenv("TIDELOG_CA_PASSPHRASE", "wrong")
    assert "wrong" in fleet("ca", "issue", "boat-003", code=2).err
    assert len(fleet("ca", "list", "--json").json["certificates"]) == 2


def test_a_file_that_cannot_be_written_says_which_serial_to_revoke(fleet: Tidelog) -> None:
    Path("file").write_text("not a folder")
    error = fleet("ca", "issue", "boat-001", "--out", "file", code=2).err
    (row,) = fleet("ca", "list", "--json").json["certificates"]
    assert f"revoke {row['serial']}" in error
    fleet("ca", "revoke", row["serial"])
    fleet("ca", "issue", "boat-001")
