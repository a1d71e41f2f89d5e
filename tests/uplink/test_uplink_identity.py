"""Who may speak for a boat: every certificate of the list, on every RPC, over real TLS."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.patience import patient, wait_until
from tests.pki.certificates import crafted, sha1_signed
from tests.uplink.parties import (
    ANSWER_S,
    BoatParty,
    CloudParty,
    Credentials,
    Fleet,
    LplexBoat,
    assert_equal_logs,
    code_of,
    dialed,
    live_frame,
    send_frames,
    target,
)
from tidelog.errors import CertificateRevoked
from tidelog.pki.certificates import DAY_US, Signer, certificate_pem, key_pem
from tidelog.pki.revocation import RevocationList

NAME = "boat-001"
URI = f"spiffe://fleet/boat/{NAME}"
DENIED = grpc.StatusCode.PERMISSION_DENIED
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("fleet"))


async def handshake_code(boat: LplexBoat) -> grpc.StatusCode:
    try:
        await boat.handshake(0)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def codes(channel: Any, session: int) -> set[grpc.StatusCode]:
    """What Handshake, Live and Backfill say to someone who claims to be the boat, in every way there is."""
    metadata = (("x-instance-id", NAME), ("x-session", str(session)))
    boat = LplexBoat(channel, NAME, metadata)
    return {await handshake_code(boat), await code_of(boat.live()), await code_of(boat.backfill())}


def crafted_certificates(fleet: Fleet, tmp_path: Path) -> dict[str, tuple[Credentials, set[grpc.StatusCode]]]:
    """Those of anchors.md B2 that must be refused, and how: by TLS (UNAVAILABLE), or by us."""
    boat_signer = fleet.boat("boat-007")
    impostor = fleet.authority(tmp_path / "impostor")
    leaf_key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    future_us = fleet.now_us + DAY_US
    made = fleet.crafted
    server_only = [ExtendedKeyUsageOID.SERVER_AUTH]
    signer = fleet.signer()
    own_key = ec.generate_private_key(ec.SECP256R1())
    own = crafted(common_names=[NAME], uris=[URI], key=own_key)
    _, without_intermediate = chained(signer)
    return {
        "uri and common name differ": (made(common_names=[NAME], uris=["spiffe://fleet/boat/boat-002"]), {DENIED}),
        "two common names": (made(common_names=[NAME, "boat-002"]), {DENIED}),
        "two uris": (made(common_names=[NAME], uris=[URI, "spiffe://fleet/boat/boat-002"]), {DENIED}),
        "wildcard": (made(common_names=["*"]), {DENIED}),
        "no name": (made(), {DENIED}),
        "empty common name": (made(common_names=[""]), {DENIED, UNAVAILABLE}),
        "path as common name": (made(common_names=["../../etc/x"]), {DENIED}),
        "zero byte in the name": (made(common_names=[f"{NAME}\0.evil"]), {DENIED, UNAVAILABLE}),
        "a node of the boats' authority": (made(common_names=[NAME], uris=[f"spiffe://fleet/node/{NAME}"]), {DENIED}),
        "short RSA key": (made(common_names=[NAME], uris=[URI], key=leaf_key), {DENIED, UNAVAILABLE}),
        "node certificate": (fleet.node, {UNAVAILABLE}),
        "expired": (fleet.issue("boat-old", days=1, age_days=20), {UNAVAILABLE}),
        "not yet valid": (made(common_names=[NAME], uris=[URI], begins_us=future_us), {UNAVAILABLE}),
        "other authority of the same name": (fleet.issue(NAME, authority=impostor), {UNAVAILABLE}),
        "server certificate": (made(common_names=[NAME], uris=[URI], usages=server_only), {UNAVAILABLE}),
        **{f"common name {name!r}": (made(common_names=[name]), {DENIED}) for name in BAD_NAMES},
        **{f"uri for {name!r}": (made(uris=[f"spiffe://fleet/boat/{name}"]), {DENIED}) for name in BAD_NAMES},
        **{f"uri {uri!r}": (made(common_names=[NAME], uris=[uri]), {DENIED}) for uri in BAD_URIS},
        "uri and common name differ in case": (made(common_names=[NAME.upper()], uris=[URI]), {DENIED}),
        "an authority's own": (made(common_names=[NAME], uris=[URI], ca=True), {DENIED, UNAVAILABLE}),
        "self-signed": (Credentials(certificate_pem(own), key_pem(own_key)), {UNAVAILABLE}),
        "SHA-1": (sha1_credentials(signer), {DENIED, UNAVAILABLE}),
        "intermediate that is not sent": (without_intermediate, {UNAVAILABLE}),
        "signed by a boat": (made(common_names=[NAME], uris=[URI], signer=leaf_signer(boat_signer)), {UNAVAILABLE}),
    }


BAD_NAMES = ("../boat-001", "boat-001/../x", ".", "..", "boat 001", "boat-001\n", "b\u00f6at-001", "-boat", "a" * 64)
BAD_URIS = (
    "spiffe://fleet/boat/",
    "spiffe://fleet/boat/boat-001/",
    "spiffe://fleet/boat/boat-001?x",
    "spiffe://fleet/boat/boat%2D001",
    "spiffe://fleet/BOAT/boat-001",
    "spiffe://fleet/captain/boat-001",
    "https://fleet/boat/boat-001",
    "boat-001",
)


def sha1_credentials(signer: Signer) -> Credentials:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = sha1_signed(crafted(common_names=[NAME], uris=[URI], key=key, signer=signer), signer.key)
    return Credentials(certificate_pem(certificate), key_pem(key))


def chained(signer: Signer) -> tuple[Credentials, Credentials]:
    """A boat under an intermediate authority: with the intermediate in its chain, and without."""
    key, leaf_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    intermediate = crafted(common_names=["intermediate"], ca=True, key=key, signer=signer)
    leaf = crafted(common_names=[NAME], uris=[URI], key=leaf_key, signer=Signer(intermediate, key))
    alone = certificate_pem(leaf)
    chain = Credentials(alone + certificate_pem(intermediate), key_pem(leaf_key), leaf.serial_number)
    return chain, Credentials(alone, key_pem(leaf_key), leaf.serial_number)


def root_authority() -> Signer:
    """An authority of somebody else's making, which allows intermediates."""
    key = ec.generate_private_key(ec.SECP256R1())
    return Signer(crafted(common_names=["a root"], ca=True, key=key), key)


def leaf_signer(credentials: Credentials) -> Signer:
    key = serialization.load_pem_private_key(credentials.key, None)
    return Signer(x509.load_pem_x509_certificate(credentials.certificate), key)  # type: ignore[arg-type]


async def test_bad_certificates_are_refused_on_every_rpc_and_hurt_nobody(tmp_path: Path, fleet: Fleet) -> None:
    boat = BoatParty(tmp_path / "boat")
    async with CloudParty(tmp_path / "cloud", fleet).running() as cloud:
        boat.dial(target(fleet, cloud.port, NAME))
        await boat.sail(5)
        await boat.wait_acked()
        session = cloud.session(NAME)
        for what, (credentials, allowed) in crafted_certificates(fleet, tmp_path).items():
            async with dialed(cloud.port, fleet, credentials) as channel:
                found = await codes(channel, session)
                assert len(found) == 1, f"{what}: the same answer on every RPC, not {found}"
                assert found <= allowed, what
        async with dialed(cloud.port, fleet) as channel:
            assert await codes(channel, session) == {UNAVAILABLE}, "no certificate"
        async with dialed(cloud.port, fleet, tls=False) as channel:
            assert await codes(channel, session) == {UNAVAILABLE}, "plaintext"
        await boat.sail(5)
        await boat.wait_acked()
        assert not boat.downs, "the honest boat noticed nothing"
        assert cloud.session(NAME) == session
        assert cloud.names() == [NAME], "nobody else got a channel"
        assert_equal_logs(boat, cloud, NAME)
        await boat.close()


@pytest.mark.parametrize("kind", ["common name only", "uri only", "both"])
async def test_certificate_with_one_name_is_that_boat(tmp_path: Path, fleet: Fleet, kind: str) -> None:
    contents: dict[str, Any] = {
        "common name only": {"common_names": [NAME]},
        "uri only": {"uris": [URI]},
        "both": {"common_names": [NAME], "uris": [URI]},
    }[kind]

    async with (
        CloudParty(tmp_path / "cloud", fleet).running() as cloud,
        dialed(cloud.port, fleet, fleet.crafted(**contents)) as channel,
    ):
        boat = LplexBoat(channel, NAME, metadata=())
        assert (await boat.handshake(0)).cursor == 0
        live = boat.live()
        assert await send_frames(live, range(1, 4)) == 3
        assert [seq for seq, _ in cloud.held(NAME)] == [1, 2, 3]


async def test_handshake_for_another_boat_is_denied(tmp_path: Path, fleet: Fleet) -> None:
    async with (
        CloudParty(tmp_path / "cloud", fleet).running() as cloud,
        dialed(cloud.port, fleet, fleet.boat(NAME)) as channel,
    ):
        for claimed in ("boat-002", "", "BOAT-001", "../x", "x" * 100_000, "b\u00f6at"):
            assert await handshake_code(LplexBoat(channel, claimed)) is DENIED, claimed[:20]
        assert not cloud.names()


async def test_names_that_differ_in_case_are_not_both_let_in(tmp_path: Path, fleet: Fleet) -> None:
    twin = fleet.crafted(common_names=["BOAT-001"])
    async with CloudParty(tmp_path / "cloud", fleet).running() as cloud:
        async with dialed(cloud.port, fleet, fleet.boat(NAME)) as channel:
            await LplexBoat(channel, NAME).handshake(0)
        async with dialed(cloud.port, fleet, twin) as channel:
            assert await handshake_code(LplexBoat(channel, "BOAT-001")) is DENIED
        assert cloud.names() == [NAME]


async def test_stream_belongs_to_the_certificate_and_not_to_the_metadata(tmp_path: Path, fleet: Fleet) -> None:
    """Another boat's certificate with my x-instance-id and my x-session writes nothing of mine."""

    thief = fleet.boat("boat-002")
    async with (
        CloudParty(tmp_path / "cloud", fleet).running() as cloud,
        dialed(cloud.port, fleet, fleet.boat(NAME)) as mine,
        dialed(cloud.port, fleet, thief) as theirs,
    ):
        victim = LplexBoat(mine, NAME)
        await victim.handshake(0)
        session = (await victim.handshake(0)).session
        live = victim.live()
        await send_frames(live, range(1, 4))
        metadata = (("x-instance-id", NAME), ("x-session", str(session)))
        other = LplexBoat(theirs, "boat-002", metadata)
        for stream in (other.live(), other.backfill()):
            assert await code_of(stream) is grpc.StatusCode.FAILED_PRECONDITION
        # With a Handshake of its own it is still only itself.
        await other.handshake(0)
        for stream in (other.live(), other.backfill()):
            assert await code_of(stream) is grpc.StatusCode.FAILED_PRECONDITION, "that session is not its own"
        own = other.live((("x-instance-id", NAME),))
        await send_frames(own, range(1, 3))
        assert [seq for seq, _ in cloud.held("boat-002")] == [1, 2]
        assert await send_frames(live, range(4, 6)) == 5
        assert [seq for seq, _ in cloud.held(NAME)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("claimed", ["0", "2", "-1", "x", "9" * 5_000, "1.0"])
async def test_stream_of_no_such_session_is_refused(tmp_path: Path, fleet: Fleet, claimed: str) -> None:
    async with (
        CloudParty(tmp_path / "cloud", fleet).running() as cloud,
        dialed(cloud.port, fleet, fleet.boat(NAME)) as channel,
    ):
        boat = LplexBoat(channel, NAME, (("x-session", claimed),))
        assert (await boat.handshake(0)).session == 1
        for stream in (boat.live(), boat.backfill()):
            assert await code_of(stream) is grpc.StatusCode.FAILED_PRECONDITION


async def test_stream_with_another_certificate_of_the_same_boat_needs_its_own_handshake(
    tmp_path: Path, fleet: Fleet
) -> None:
    renewed = fleet.crafted(common_names=[NAME], uris=[URI])
    async with (
        CloudParty(tmp_path / "cloud", fleet).running() as cloud,
        dialed(cloud.port, fleet, fleet.boat(NAME)) as first,
        dialed(cloud.port, fleet, renewed) as second,
    ):
        await LplexBoat(first, NAME).handshake(0)
        assert await code_of(LplexBoat(second, NAME).live()) is grpc.StatusCode.FAILED_PRECONDITION
        await LplexBoat(second, NAME).handshake(0)
        assert await send_frames(LplexBoat(second, NAME).live(), range(1, 3)) == 2


async def test_renewed_certificate_of_the_same_name_goes_on_where_the_old_one_was(tmp_path: Path, fleet: Fleet) -> None:
    name = "boat-040"
    boat = BoatParty(tmp_path / "boat")
    async with CloudParty(tmp_path / "cloud", fleet).running() as cloud:
        boat.dial(target(fleet, cloud.port, name))
        await boat.sail(5)
        await boat.wait_acked()
        await boat.hang_up()
        renewed = fleet.boats.renew(name, now_us=fleet.now_us)
        boat.record(50)
        credentials = Credentials(renewed.certificate_pem, fleet.boat(name).key, renewed.serial)
        assert renewed.serial != fleet.boat(name).serial
        boat.dial(target(fleet, cloud.port, name, credentials))
        await boat.sail(5)
        await boat.wait_acked()
        assert_equal_logs(boat, cloud, name)
        assert len(cloud.service.instances[name].channel.receiver.fold.lineages) == 1
        await boat.close()


async def test_intermediate_is_followed_where_the_authority_allows_it(tmp_path: Path, fleet: Fleet) -> None:
    root = root_authority()
    chain, alone = chained(root)
    cloud = CloudParty(tmp_path / "cloud", fleet, client_authority=certificate_pem(root.certificate))
    async with cloud.running():
        async with dialed(cloud.port, fleet, alone) as channel:
            assert await codes(channel, 1) == {UNAVAILABLE}, "without the intermediate there is no way to the root"
        async with dialed(cloud.port, fleet, fleet.boat(NAME)) as channel:
            assert await codes(channel, 1) == {UNAVAILABLE}, "our own boats' authority is not trusted here"
        assert not cloud.names()
        async with dialed(cloud.port, fleet, chain) as channel:
            boat = LplexBoat(channel, NAME)
            await boat.handshake(0)
            assert await send_frames(boat.live(), range(1, 4)) == 3


@pytest.mark.parametrize("insecure_dev", [False, True])
async def test_metadata_is_never_trusted_over_tls(tmp_path: Path, fleet: Fleet, insecure_dev: bool) -> None:
    """Even where the server was told not to ask for certificates, which lplex's ACME mode does."""

    cloud = CloudParty(tmp_path / "cloud", fleet, insecure_dev=insecure_dev, ask_for_certificates=False)
    async with cloud.running(), dialed(cloud.port, fleet) as channel:
        assert await codes(channel, 1) == {grpc.StatusCode.UNAUTHENTICATED}
        assert not cloud.names()


async def test_plaintext_without_insecure_dev_is_unauthenticated(tmp_path: Path) -> None:
    async with CloudParty(tmp_path / "cloud", None).running() as cloud:
        cloud.service.identity.insecure_dev = False
        async with dialed(cloud.port) as channel:
            assert await codes(channel, 1) == {grpc.StatusCode.UNAUTHENTICATED}


async def test_revocation_ends_running_streams_and_refuses_new_ones(tmp_path: Path, fleet: Fleet) -> None:
    names = ["boat-020", "boat-021"]
    stolen, good = (BoatParty(tmp_path / name) for name in names)
    cloud = CloudParty(tmp_path / "cloud", fleet, revocations=fleet.revocations())
    async with cloud.running():
        for name, boat in zip(names, (stolen, good), strict=True):
            boat.dial(target(fleet, cloud.port, name))
            await boat.sail(3)
            await boat.wait_acked()
        fleet.boats.revoke(names[0], now_us=fleet.now_us, reason="stolen")
        await wait_until(lambda: bool(stolen.downs), "the running streams end", 5)
        assert "PERMISSION_DENIED: certificate_revoked" in stolen.downs[0]
        await stolen.sail(3)
        await wait_until(lambda: stolen.uplink.statistics().dials >= 4, "new ones are refused too")
        assert all("certificate_revoked" in reason for reason in stolen.downs)
        async with dialed(cloud.port, fleet, fleet.boat(names[0])) as channel:
            thief = LplexBoat(channel, names[0])
            assert await handshake_code(thief) is DENIED
            assert await code_of(thief.live()) is DENIED
            assert await code_of(thief.backfill()) is DENIED
        await good.sail(3)
        await good.wait_acked()
        assert not good.downs
        assert len(cloud.held(names[0])) == 30, "nothing after the revocation"
        await stolen.close()
        await good.close()


async def test_revocation_during_a_session_is_said_and_counted_once_and_can_be_taken_back(
    tmp_path: Path, fleet: Fleet
) -> None:
    name, path = "boat-040", tmp_path / "revoked.txt"
    another = f"{fleet.boat('boat-041').serial:x} lost\n"
    path.write_text(another)
    listed = RevocationList(path, now_us=fleet.now_us, check_interval_us=50_000)
    cloud = CloudParty(tmp_path / "cloud", fleet, revocations=listed)
    async with cloud.running(), dialed(cloud.port, fleet, fleet.boat(name)) as channel:
        boat = LplexBoat(channel, name)
        await boat.handshake(0)
        live = boat.live()
        await live.write(live_frame(1))
        await wait_until(lambda: len(cloud.held(name)) == 1, "the first frame is there")
        path.write_text(f"{another}{fleet.boat(name).serial:x} stolen\n")
        assert await code_of(live) is DENIED
        await wait_until(lambda: len(cloud.lines) >= 2, "the log says so")
        assert cloud.lines[1].startswith(f"boat revoked name='{name}' code=certificate_revoked reason=")
        path.write_text(another)
        await wait_until(lambda: _is_good(cloud, fleet.boat(name)), "the list was read again")
        await boat.handshake(1)
        assert len(cloud.lines) == 3
        assert cloud.lines[2].startswith(f"boat recovered name={name} session=2 ")
        assert "refused=certificate_revoked refusals=1 " in cloud.lines[2]
        events = cloud.service.instances[name].watch.events.newest(100)
        assert [event.detail for event in events if event.type == "refused"] == [
            {"code": "certificate_revoked", "count": 1}
        ]


async def test_revocation_of_a_session_without_streams_is_said_too(tmp_path: Path, fleet: Fleet) -> None:
    name = "boat-042"
    cloud = CloudParty(tmp_path / "cloud", fleet, revocations=fleet.revocations())
    async with cloud.running(), dialed(cloud.port, fleet, fleet.boat(name)) as channel:
        await LplexBoat(channel, name).handshake(0)
        fleet.boats.revoke(name, now_us=fleet.now_us)
        await wait_until(lambda: len(cloud.lines) == 2, "the log says so")
        assert cloud.lines[1].startswith(f"boat revoked name='{name}' ")


def _is_good(cloud: CloudParty, credentials: Credentials) -> bool:
    try:
        cloud.service.identity.require_good((credentials.serial,))
    except CertificateRevoked:
        return False
    return True


async def write_for_ever(live: Any) -> None:
    seq = 1
    while True:
        seq += 1
        await live.write(live_frame(seq))


async def test_revoked_boat_that_reads_no_answers_is_not_heard_either(tmp_path: Path, fleet: Fleet) -> None:
    name = "boat-030"
    cloud = CloudParty(tmp_path / "cloud", fleet, revocations=fleet.revocations())
    async with cloud.running(), dialed(cloud.port, fleet, fleet.boat(name)) as channel:
        boat = LplexBoat(channel, name)
        await boat.handshake(0)
        live = boat.live()
        await live.write(live_frame(1))
        await wait_until(lambda: len(cloud.held(name)) == 1, "the first frame is there")
        session = cloud.service.instances[name].session
        assert session is not None
        fleet.boats.revoke(name, now_us=fleet.now_us)
        await wait_until(lambda: session.over, "the session is over", 5)
        with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
            await asyncio.wait_for(write_for_ever(live), patient(ANSWER_S))
        assert len(cloud.held(name)) == 1


async def test_a_revoked_intermediate_takes_its_boats_with_it(tmp_path: Path, fleet: Fleet) -> None:
    root = root_authority()
    key, leaf_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    intermediate = crafted(common_names=["intermediate"], ca=True, key=key, signer=root)
    signer = Signer(intermediate, key)
    builder = crafted(common_names=[NAME], uris=[URI], key=leaf_key, signer=signer)
    leaf = (
        x509.CertificateBuilder(builder.issuer, builder.subject, leaf_key.public_key(), 77)
        .not_valid_before(builder.not_valid_before_utc)
        .not_valid_after(builder.not_valid_after_utc)
        .sign(key, hashes.SHA256())
    )
    chain = Credentials(certificate_pem(leaf) + certificate_pem(intermediate), key_pem(leaf_key))
    (tmp_path / "revoked.txt").write_text(f"{intermediate.serial_number:x} stolen\n")
    revocations = RevocationList(tmp_path / "revoked.txt", now_us=fleet.now_us)
    authority = certificate_pem(root.certificate)
    cloud = CloudParty(tmp_path / "cloud", fleet, revocations=revocations, client_authority=authority)
    async with cloud.running(), dialed(cloud.port, fleet, chain) as channel:
        assert await handshake_code(LplexBoat(channel, NAME)) in (DENIED, UNAVAILABLE)
