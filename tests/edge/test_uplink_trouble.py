"""A boat that cannot reach its cloud says why, once, and what to do."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.parties import HOST, BoatParty, CloudParty, Credentials, Fleet, run, target, wait_until
from tests.patience import patient
from tidelog.edge.uplink_target import UplinkTarget
from tidelog.edge.uplink_trouble import own_trouble, probe
from tidelog.wire.certificates import DAY_US

NAME = "boat-001"
URI = f"spiffe://fleet/boat/{NAME}"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("fleet"))


def later(fleet: Fleet) -> Credentials:
    return fleet.crafted(common_names=[NAME], uris=[URI], begins_us=fleet.now_us + DAY_US)


BAD: dict[str, tuple[Callable[[Fleet, Path], Credentials], str]] = {
    "expired": (
        lambda fleet, _: fleet.crafted(
            common_names=[NAME], uris=[URI], begins_us=fleet.now_us - 20 * DAY_US, ends_us=fleet.now_us - DAY_US
        ),
        "certificate_expired: the certificate of boat boat-001 expired at",
    ),
    "not yet valid": (
        lambda fleet, _: later(fleet),
        "certificate_not_yet_valid: the certificate of boat boat-001 is valid from",
    ),
    "unknown": (
        lambda fleet, folder: fleet.issue(NAME, authority=fleet.authority(folder / "impostor")),
        "certificate_rejected: the cloud refuses the certificate of boat-001: its authority is unknown there",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_certificate_is_named_once_with_what_to_do(tmp_path: Path, fleet: Fleet, what: str) -> None:
    """gRPC said "Socket closed", at every dial."""
    make, words = BAD[what]

    async def scenario() -> None:
        boat = BoatParty(tmp_path / "boat")
        async with CloudParty(tmp_path / "cloud", fleet).running() as cloud:
            credentials = make(fleet, tmp_path)
            shown = [credentials]
            boat.dial_as(lambda: target(fleet, cloud.port, NAME, shown[0]))
            await wait_until(lambda: boat.uplink.statistics().dials >= 4, "it dials on")
            (line,) = boat.downs
            assert words in line
            assert words in boat.uplink.statistics().trouble
            shown[0] = fleet.crafted(common_names=[NAME], uris=[URI])
            boat.record(10)
            await boat.wait_acked()
            assert boat.ups[0].startswith("uplink up session=1 ")
            assert boat.uplink.statistics().trouble == ""
            await boat.close()

    run(scenario())


@pytest.mark.parametrize("what", ["expired", "another cloud"])
def test_a_boat_process_that_is_never_let_in_writes_one_line_about_it(tmp_path: Path, fleet: Fleet, what: str) -> None:
    """However often it dials; gRPC's own lines, one for each handshake that it sees fail, stay out of it."""
    make, words = BAD.get(what, (lambda fleet, _: fleet.boat(NAME), "cloud_not_trusted: "))

    async def scenario() -> None:
        credentials = make(fleet, tmp_path)
        known = fleet if what == "expired" else Fleet(tmp_path / "other")
        trusted = (known.nodes.folder / "ca.crt").read_bytes()
        flags = ["-simulate", "1", "-http-listen", f"{HOST}:0", "-http-anonymous=true"]
        for name, data in (("cert", credentials.certificate), ("key", credentials.key), ("ca", trusted)):
            (tmp_path / name).write_bytes(data)
            (tmp_path / name).chmod(0o600)
            flags += [f"-replication-tls-{name}", str(tmp_path / name)]
        async with CloudParty(tmp_path / "cloud", fleet).running() as cloud:
            flags += ["-replication-target", f"{HOST}:{cloud.port}", "-replication-instance-id", NAME]
            lines = await log_of_three_dials([*flags, "-journal-dir", str(tmp_path / "journal")])
        assert all(re.match(r"20\d\d-\d\d-\d\dT\S+Z (boat|http|uplink) ", line) for line in lines), lines
        (line,) = [line for line in lines if " uplink " in line]
        assert words in line

    run(scenario())


async def log_of_three_dials(flags: list[str]) -> list[str]:
    """What a boat process writes until it was told to stop, after its third dial."""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    command = [sys.executable, "-m", "tidelog.cli", "boat", *flags]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, env=environment)
    assert process.stderr is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(patient(30)):
            while not lines or " http up port=" not in lines[-1]:
                lines.append((await process.stderr.readline()).decode())
                assert lines[-1], "".join(lines)
            url = f"http://{HOST}:{lines[-1].partition('port=')[2].split()[0]}/replication/status"
            await asyncio.to_thread(_wait_dials, url, 3)
    finally:
        process.terminate()
        rest = await asyncio.wait_for(process.stderr.read(), patient(30))
        await process.wait()
    return lines + rest.decode().splitlines()


def _wait_dials(url: str, dials: int) -> None:
    deadline = time.monotonic() + patient(25)
    while time.monotonic() < deadline:
        with urllib.request.urlopen(url, timeout=patient(5)) as answer:
            if json.load(answer)["dials"] >= dials:
                return
        time.sleep(0.1)
    raise AssertionError(f"no {dials} dials in time")


def test_a_cloud_of_another_authority_is_named_too(tmp_path: Path, fleet: Fleet) -> None:
    async def scenario() -> None:
        other = Fleet(tmp_path / "other")
        async with CloudParty(tmp_path / "cloud", fleet).running() as cloud:
            shown = target(other, cloud.port, NAME)
            found = await asyncio.to_thread(probe, shown)
            assert found is not None
            assert found.code == "cloud_not_trusted"
            assert "replication.tls.ca must be the nodes' ca.crt" in str(found)

    run(scenario())


def test_nothing_is_wrong_with_a_good_certificate_and_a_cloud_that_is_not_there(tmp_path: Path, fleet: Fleet) -> None:
    async def scenario() -> None:
        async with CloudParty(tmp_path / "cloud", fleet).running() as cloud:
            good = target(fleet, cloud.port, NAME)
            assert own_trouble(good, fleet.now_us) is None
            assert await asyncio.to_thread(probe, good) is None
        assert await asyncio.to_thread(probe, good) is None
        assert own_trouble(UplinkTarget(address=f"{HOST}:1", instance=NAME, insecure_dev=True), 0) is None

    run(scenario())


def test_a_boat_whose_clock_says_1970_is_told_to_set_it(fleet: Fleet) -> None:
    found: Any = own_trouble(target(fleet, 1, NAME), 0)
    assert found.code == "certificate_not_yet_valid"
    assert "set the clock first" in str(found)
