"""Three real nodes on this machine: they form, survive kill -9 and lost disks, and refuse who does not belong.

The tests share one cluster: each first waits until it is whole, so none depends on how the one before it ended.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from benchmarks.kits.cluster_kit import HOST, LOAD, OPERATOR, ClusterKit
from benchmarks.kits.cluster_load import ClusterCaller

from tests.cluster.load import Load
from tests.patience import patient
from tidelog.codecs.node_codec import PROPOSE
from tidelog.core.catalog import ChannelConfig, CreateChannel, encode_change
from tidelog.errors import LogError
from tidelog.pki.authority import Authority
from tidelog.pki.certificates import AuthorityOptions
from tidelog.transports.link.link import Buffers, Link, LinkEnd, LinkIdentity, LinkTls, LinkTlsFiles, dial_link

RECOVERY_S = 30.0
"""For a machine with other work; the slow lane asks for two seconds."""
ENDS_S = 60.0


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterKit]:
    with ClusterKit(tmp_path_factory.mktemp("cluster"), nodes=3) as kit:
        yield kit


@asynccontextmanager
async def whole(kit: ClusterKit) -> AsyncIterator[tuple[ClusterCaller, str]]:
    """The cluster with all three nodes up, and who leads it."""
    kit.start_all()
    async with kit.caller() as caller:
        yield caller, await kit.wait_formed(caller)


class Silent:
    def on_turn(self) -> None:
        """Nothing is put off."""

    def on_message(self, link: Link, kind: int, body: memoryview) -> None:
        pass

    async def on_request(self, link: Link, kind: int, body: memoryview) -> Buffers:
        return b""


def run(command: list[str]) -> tuple[int, str]:
    """A process that must end by itself: its exit code, and what it said."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=patient(ENDS_S), check=False)
    return ended.returncode, ended.stdout + ended.stderr


async def test_three_nodes_form_one_cluster(kit: ClusterKit) -> None:
    async with whole(kit) as (caller, leader):
        statuses = [await kit.status(caller, name) for name in kit.names]
        assert all(status is not None for status in statuses)
        assert len({status["cluster"] for status in statuses if status}) == 1
        assert [status["node"] for status in statuses if status and status["standing"] == "leader"] == [leader]
        async with kit.operator() as operator:
            status = await operator.status()
        assert status["leader"] == leader
        assert sorted(node["node"] for node in status["nodes"]) == kit.names
        assert all(node["state"] == "active" for node in status["nodes"])


async def test_a_killed_leader_costs_no_acknowledged_change(kit: ClusterKit) -> None:
    async with whole(kit) as (caller, leader):
        load = Load(caller, channels=3, seed=41)
        await load.create(leader)
        async with load.running():
            await load.wait_acked(kit, 30)
            killed_ns = time.monotonic_ns()
            kit.kill(leader)
            await load.wait_acked(kit, 30, deadline_s=RECOVERY_S)
            assert load.history.next_ack_after(killed_ns) is not None
            kit.start(leader)
            await kit.wait_formed(caller)
        await load.check(kit.names)
        assert not load.errors, load.errors[:5]
        await load.delete()


async def test_all_killed_at_once_lose_nothing(kit: ClusterKit) -> None:
    async with whole(kit) as (caller, leader):
        load = Load(caller, channels=3, seed=42)
        await load.create(leader)
        async with load.running():
            await load.wait_acked(kit, 30)
            kit.kill_all()
            kit.start_all()
            await load.wait_acked(kit, 10, deadline_s=RECOVERY_S)
        await kit.wait_formed(caller)
        await load.check(kit.names)
        await load.delete()


async def test_a_wiped_disk_comes_back_as_a_learner_and_votes_again(kit: ClusterKit) -> None:
    async with whole(kit) as (caller, leader):
        wiped = next(name for name in kit.names if name != leader)
        before = await kit.status(caller, leader)
        assert before is not None
        old = next(member["member"] for member in before["members"] if member["node"] == wiped)
        load = Load(caller, channels=1, seed=43)
        await load.create(leader)
        async with load.running():
            await load.wait_acked(kit, 10)
            kit.kill(wiped)
            kit.wipe(wiped)
            said_before = {name: len(kit.said(name)) for name in kit.names}
            kit.start(wiped)
            await kit.wait_formed(caller)
        after = await kit.status(caller, wiped)
        assert after is not None
        new = next(member["member"] for member in after["members"] if member["node"] == wiped)
        assert new != old
        assert old not in [member["member"] for member in after["members"]]
        said = "".join(kit.said(name)[said_before[name] :] for name in kit.names)
        steps = re.findall(rf"membership step=(\w+) member={re.escape(new)}", said)
        assert steps[0] == "AddLearner", steps
        assert "Promote" in steps, steps
        await load.check(kit.names)
        await load.delete()


async def test_metadata_put_back_from_an_old_copy_is_set_aside_and_the_node_joins_as_a_new_disk(
    kit: ClusterKit, tmp_path: Path
) -> None:
    async with whole(kit) as (caller, leader):
        victim = next(name for name in kit.names if name != leader)
        before = await kit.status(caller, leader)
        assert before is not None
        old = next(member["member"] for member in before["members"] if member["node"] == victim)
        metadata = kit.nodes[victim].data / ".tidelog" / "metadata"
        shutil.copytree(metadata, tmp_path / "copy")
        load = Load(caller, channels=2, seed=45)
        await load.create(leader)
        async with load.running():
            await load.wait_acked(kit, 20)
            said_before = len(kit.said(victim))
            kit.kill(victim)
            shutil.rmtree(metadata)
            shutil.copytree(tmp_path / "copy", metadata)
            kit.start(victim)
            await load.wait_acked(kit, 20, deadline_s=RECOVERY_S)
            await kit.wait_formed(caller)
        said = kit.said(victim)[said_before:]
        line = r"metadata set aside reason=.*it is an older copy of itself: .* as n\d+ remembers"
        assert re.search(line, said), said
        after = await kit.status(caller, victim)
        assert after is not None
        assert "set aside in .tidelog/quarantine" in after["damage"]
        assert list((kit.nodes[victim].data / ".tidelog" / "quarantine").iterdir()), "nothing is deleted"
        members = [member["member"] for member in after["members"]]
        assert old not in members
        assert sorted(member.partition("/")[0] for member in members) == kit.names
        await load.check(kit.names)
        await load.delete()


async def test_a_read_does_not_wait_for_a_frozen_leader(kit: ClusterKit) -> None:
    async with whole(kit) as (caller, leader):
        load = Load(caller, channels=1, seed=44, timeout_ms=20_000)
        await load.create(leader)
        follower = next(name for name in kit.names if name != leader)
        kit.pause(leader)
        try:
            assert await load.client().read_channel("c0", at=follower) is not None
        finally:
            kit.resume(leader)
        await kit.wait_formed(caller)
        await load.delete()


async def test_an_operator_changes_who_belongs_and_nothing_else(kit: ClusterKit) -> None:
    async with whole(kit) as (caller, leader), kit.caller(OPERATOR, kind="operator") as operator:
        change = CreateChannel(name="x", config=ChannelConfig(), replicas=(leader,), leader=leader, at_ms=0)
        with pytest.raises(LogError) as refused:
            await operator.ask(leader, PROPOSE, encode_change(change), timeout_ms=10_000)
        assert refused.value.code == "bad_message"
        async with kit.operator() as client:
            await client.add("n9")
            status = await kit.status(caller, leader)
            assert status is not None
            assert {node["node"]: node["state"] for node in status["nodes"]}["n9"] == "expected"
            await client.remove("n9")


async def test_a_clean_stop_hands_leadership_over(kit: ClusterKit) -> None:
    async with whole(kit) as (caller, leader):
        kit.terminate(leader)
        heir = await kit.wait_leader(caller, other_than=leader)
        assert kit.wait_ended(leader) == 0, kit.said(leader)[-2000:]
        assert re.search(rf"leadership handed over to={heir}\b", kit.said(leader)), kit.said(leader)[-2000:]


def test_a_second_process_is_refused(kit: ClusterKit, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with whole(kit):
            node = kit.nodes["n1"]
            same_port = kit.command("n1")
            same_port[same_port.index("-data-dir") + 1] = str(tmp_path / "other")
            code, said = run(same_port)
            assert code != 0
            assert str(node.port) in said
            assert "Traceback" not in said
            same_folder = kit.command("n1")
            same_folder[same_folder.index("-listen") + 1] = f"{HOST}:0"
            code, said = run(same_folder)
            assert code != 0
            assert node.process is not None
            assert f"process {node.process.pid} has it open" in said
            assert "Traceback" not in said
            assert node.is_running

    asyncio.run(scenario())


def test_a_folder_of_another_node_is_refused(kit: ClusterKit, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with whole(kit) as (_, leader):
            owner, other = (name for name in kit.names if name != leader)
            kit.kill(owner)  # so that its files hold still
            shutil.copytree(kit.nodes[owner].data, tmp_path / "copy")
            command = kit.command(other)
            command[command.index("-listen") + 1] = f"{HOST}:0"
            command[command.index("-data-dir") + 1] = str(tmp_path / "copy")
            code, said = run(command)
            assert code != 0
            assert f"node {owner}" in said, said
            assert "Traceback" not in said

    asyncio.run(scenario())


async def test_a_boats_certificate_is_not_accepted_by_nodes(kit: ClusterKit, tmp_path: Path) -> None:
    boats = Authority.create(tmp_path / "boats", AuthorityOptions(kind="boat"), now_us=time.time_ns() // 1000)
    issued = boats.issue("boat-001", now_us=time.time_ns() // 1000)
    assert issued.key_pem is not None
    (tmp_path / "boat.crt").write_bytes(issued.certificate_pem)
    (tmp_path / "boat.key").touch(mode=0o600)
    (tmp_path / "boat.key").write_bytes(issued.key_pem)

    async with whole(kit):
        files = LinkTlsFiles(
            certificate=tmp_path / "boat.crt",
            key=tmp_path / "boat.key",
            authority=kit.folder / "certificates" / "ca.crt",
        )
        said_before = len(kit.said("n1"))
        end = LinkEnd(identity=lambda: LinkIdentity(node="boat-001", cluster=b""), tls=LinkTls(files))
        with pytest.raises(LogError) as refused:
            await dial_link(kit.address("n1"), end=end, handler=Silent())
        assert refused.value.code == "tls_failed"

        async def is_said() -> bool:
            return "link refused" in kit.said("n1")[said_before:]

        await kit.wait(is_said, deadline_s=30, what="the refusal in the log")


async def test_a_caller_of_another_cluster_is_refused(kit: ClusterKit) -> None:
    async with whole(kit):
        end = LinkEnd(identity=lambda: LinkIdentity(node=LOAD, cluster=os.urandom(16)), tls=kit.tls(LOAD))
        with pytest.raises(LogError) as refused:
            await dial_link(kit.address("n2"), end=end, handler=Silent())
        assert refused.value.code == "wrong_cluster"


def test_a_node_of_another_cluster_is_refused_and_stays_what_it_is(kit: ClusterKit) -> None:
    async def scenario() -> None:
        async with whole(kit) as (caller, leader):
            kit.add("x1")
            alone = f"x1={kit.address('x1')}"
            kit.start("x1", peers=alone)
            async with kit.caller() as other:
                await kit.wait_formed(other, "x1")
                founded = await kit.status(other, "x1")
            kit.kill("x1")
            kit.start("x1", peers=f"{alone},{leader}={kit.address(leader)}")

            async def is_refused() -> bool:
                return "code=wrong_cluster" in kit.said("x1")

            await kit.wait(is_refused, deadline_s=30, what="the refusal of x1")
            async with kit.caller() as other:
                await kit.wait_formed(other, "x1")
                status = await kit.status(other, "x1")
            assert founded is not None
            assert status is not None
            assert status["cluster"] == founded["cluster"]
            kit.drop("x1")
            ours = await kit.status(caller, leader)
            assert ours is not None
            assert ours["cluster"] != founded["cluster"]
            assert "x1" not in [node["node"] for node in ours["nodes"]]

    try:
        asyncio.run(scenario())
    finally:
        if "x1" in kit.nodes:
            kit.drop("x1")


def test_the_command_line_shows_the_cluster(kit: ClusterKit) -> None:
    async def scenario() -> None:
        async with whole(kit):
            command = [sys.executable, "-m", "tidelog.cli", "cluster", "status", "--node", kit.address("n3")]
            place = kit.folder / "certificates"
            command += ["--tls-cert", str(place / "op.crt"), "--tls-key", str(place / "op.key")]
            command += ["--tls-ca", str(place / "ca.crt")]
            code, said = run(command)
            assert code == 0, said
            assert all(name in said for name in kit.names)

    asyncio.run(scenario())
