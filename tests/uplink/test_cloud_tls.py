"""Certificates of a running cloud are replaced without a restart; boats of another fleet are refused."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.patience import wait_until
from tests.uplink.clouds import CloudHouse, TlsFolder, running_cloud
from tests.uplink.parties import HOST, BoatParty, Credentials, Fleet, LplexBoat, dialed, send_frames, target
from tidelog.cluster.node.cloud import CloudOptions
from tidelog.errors import InvalidConfig
from tidelog.pki.certificates import AuthorityOptions
from tidelog.pki.identity import parse_certificate

NAME = "boat-001"
_NUMBERS = itertools.count(2)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("fleet"))


def new_node(fleet: Fleet) -> Credentials:
    issued = fleet.nodes.issue(f"node-{next(_NUMBERS)}", now_us=fleet.now_us, server_names=[HOST, "localhost"])
    assert issued.key_pem is not None
    return Credentials(issued.certificate_pem, issued.key_pem, issued.serial)


def served_serial(house: CloudHouse) -> int:
    """Serial number of the certificate that a new connection is shown."""
    return parse_certificate(ssl.get_server_certificate((HOST, house.port)).encode()).serial_number


async def greet(house: CloudHouse, fleet: Fleet, credentials: Credentials, name: str = NAME) -> int:
    async with dialed(house.port, fleet, credentials) as channel:
        return int((await LplexBoat(channel, name).handshake(1)).session)


async def refused(call: Any) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    raise AssertionError("it was not refused")


async def test_a_new_pair_is_served_to_new_connections_and_running_streams_stay(tmp_path: Path, fleet: Fleet) -> None:
    tls = TlsFolder(tmp_path / "tls", fleet)
    async with (
        running_cloud(tmp_path / "cloud", tls) as house,
        dialed(house.port, fleet, fleet.boat(NAME)) as channel,
    ):
        boat = LplexBoat(channel, NAME)
        await boat.handshake(1)
        live = boat.live()
        await send_frames(live, range(1, 4))
        assert await asyncio.to_thread(served_serial, house) == fleet.node.serial
        renewed = new_node(fleet)
        tls.key.write_bytes(renewed.key)
        assert await asyncio.to_thread(served_serial, house) == fleet.node.serial, "half a pair is not taken"
        assert "not taken" in house.lines[-1]
        tls.cert.write_bytes(renewed.certificate)
        assert await asyncio.to_thread(served_serial, house) == renewed.serial
        assert "were taken generation=2" in house.lines[-1]
        assert await send_frames(live, range(4, 10)) == 9, "the stream that ran goes on"
        assert await greet(house, fleet, fleet.boat("boat-002"), "boat-002") == 1


@pytest.mark.parametrize("damage", ["deleted", "garbage", "empty", "foreign-key"])
async def test_bad_files_leave_the_last_good_pair_in_force(tmp_path: Path, fleet: Fleet, damage: str) -> None:
    tls = TlsFolder(tmp_path / "tls", fleet)
    async with running_cloud(tmp_path / "cloud", tls) as house:
        assert await greet(house, fleet, fleet.boat(NAME)) == 1
        match damage:
            case "deleted":
                tls.cert.unlink()
            case "garbage":
                tls.authority.write_bytes(b"-----BEGIN CERTIFICATE-----\nxxxx\n-----END CERTIFICATE-----\n")
            case "empty":
                tls.key.write_bytes(b"")
            case "foreign-key":
                tls.key.write_bytes(new_node(fleet).key)
        for session in (2, 3, 4):
            assert await greet(house, fleet, fleet.boat(NAME)) == session
        assert sum("not taken" in line for line in house.lines) == 1, "said once, not for every connection"
        assert await asyncio.to_thread(served_serial, house) == fleet.node.serial


async def test_the_boats_authority_is_rolled_with_both_trusted_in_between(tmp_path: Path, fleet: Fleet) -> None:
    tls = TlsFolder(tmp_path / "tls", fleet)
    successor = fleet.authority(tmp_path / "successor")
    old, new = fleet.boat(NAME), fleet.issue(NAME, authority=successor)
    async with running_cloud(tmp_path / "cloud", tls) as house:
        assert await greet(house, fleet, old) == 1
        assert await refused(greet(house, fleet, new)) is grpc.StatusCode.UNAVAILABLE
        tls.authority.write_bytes(fleet.boats.certificate_pem + successor.certificate_pem)
        assert await greet(house, fleet, old) == 2
        assert await greet(house, fleet, new) == 3
        tls.authority.write_bytes(successor.certificate_pem)
        assert await greet(house, fleet, new) == 4
        assert await refused(greet(house, fleet, old)) is grpc.StatusCode.UNAVAILABLE


async def test_a_boat_of_ours_sails_through_a_roll(tmp_path: Path, fleet: Fleet) -> None:
    tls = TlsFolder(tmp_path / "tls", fleet)
    boat = BoatParty(tmp_path / "boat")
    async with running_cloud(tmp_path / "cloud", tls) as house:
        boat.dial(target(fleet, house.port, NAME))
        await wait_until(lambda: boat.is_connected, "the boat is there")
        await boat.sail(5)
        renewed = new_node(fleet)
        tls.cert.write_bytes(renewed.certificate)
        tls.key.write_bytes(renewed.key)
        await boat.sail(5)
        await boat.wait_acked()
        assert not boat.downs, "nothing was cut"
        await boat.hang_up()
        boat.dial(target(fleet, house.port, NAME))
        await boat.sail(5)
        await boat.wait_acked()
        assert house.status(NAME).cursor == boat.journal.head
        await boat.close()


async def test_files_that_never_fit_keep_the_cloud_from_starting(tmp_path: Path, fleet: Fleet) -> None:
    tls = TlsFolder(tmp_path / "tls", fleet)
    tls.key.write_bytes(new_node(fleet).key)
    with pytest.raises(Exception, match="not the key of the certificate"):
        async with running_cloud(tmp_path / "cloud", tls):
            pass


async def test_a_boat_of_another_fleet_is_refused(tmp_path: Path, fleet: Fleet) -> None:
    tls = TlsFolder(tmp_path / "tls", fleet)
    own_fleet = AuthorityOptions(kind="boat").fleet
    async with running_cloud(tmp_path / "cloud", tls, fleet=own_fleet) as house:
        assert await greet(house, fleet, fleet.boat(NAME)) == 1
        stranger = fleet.crafted(common_names=[NAME], uris=[f"spiffe://other/boat/{NAME}"])
        assert await refused(greet(house, fleet, stranger)) is grpc.StatusCode.PERMISSION_DENIED
        nameless = fleet.crafted(common_names=[NAME], uris=[])
        assert await greet(house, fleet, nameless) == 2, "an lplex boat's certificate names no fleet"
    async with running_cloud(tmp_path / "any", tls) as house:
        assert await greet(house, fleet, stranger) == 1, "without a setting any fleet will do"


def test_a_fleet_that_is_no_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="is not a fleet"):
        CloudOptions(data_dir=tmp_path, insecure_dev=True, fleet="No Fleet")
