"""What the uplink does about a channel that takes nothing: stopped, read-only, or somebody else's."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from tests.patience import wait_until
from tests.uplink.parties import BoatParty, CloudParty, Fleet, LplexBoat, assert_equal_logs, dialed, target
from tidelog.codecs.client_codec import ALTER, CREATE, config_json
from tidelog.core.catalog import ChannelConfig

NAME = "boat-001"


async def test_a_log_that_stopped_is_opened_anew_and_verified_and_the_boat_goes_on(tmp_path: Path) -> None:
    boat, fleet = BoatParty(tmp_path / "boat"), Fleet(tmp_path / "fleet")
    async with CloudParty(tmp_path / "cloud", fleet).running() as cloud:
        boat.dial(target(fleet, cloud.port, NAME))
        await boat.sail(10)
        await boat.wait_acked()
        acked = boat.journal.acked
        stopped = cloud.log(NAME)
        stopped.poison("a failed sync")
        await boat.sail(10)
        await wait_until(lambda: bool(boat.downs), "the boat was refused")
        assert boat.journal.acked >= acked, "acks never go back"
        await boat.wait_acked()
        assert cloud.log(NAME) is not stopped
        assert_equal_logs(boat, cloud, NAME)
        await boat.close()


async def test_a_read_only_channel_refuses_by_type_acks_nothing_and_goes_on_when_it_is_writable(tmp_path: Path) -> None:
    boat, fleet = BoatParty(tmp_path / "boat"), Fleet(tmp_path / "fleet")
    async with CloudParty(tmp_path / "cloud", fleet).running() as cloud:
        boat.dial(target(fleet, cloud.port, NAME))
        await boat.sail(10)
        await boat.wait_acked()

        async def alter(operation: str) -> None:
            request = {"channel": NAME, "op": operation}
            await cloud.node.admin.ask(ALTER, request, principal="operator:test")

        await alter("readonly")
        await boat.sail(10)
        await wait_until(lambda: boat.uplink.statistics().dials >= 3, "the boat is refused, also when it dials again")
        assert any("FAILED_PRECONDITION: channel_readonly" in reason for reason in boat.downs), boat.downs
        assert boat.journal.acked == 100, "nothing that was refused is acked"
        await alter("writable")
        await boat.wait_acked()
        assert_equal_logs(boat, cloud, NAME)
        await boat.close()


async def test_no_boat_writes_to_a_channel_that_is_not_a_boats(tmp_path: Path) -> None:
    async with CloudParty(tmp_path / "cloud", None).running() as cloud, dialed(cloud.port) as channel:
        config = config_json(ChannelConfig(factor=1))
        request = {"channels": [{"name": "orders", "config": config}]}
        await cloud.node.admin.ask(CREATE, request, principal="operator:test")
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await LplexBoat(channel, "orders").handshake(0)
        assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "orders" not in cloud.service.instances
        with pytest.raises(grpc.aio.AioRpcError, match="name_taken"):
            await LplexBoat(channel, "Orders").handshake(0)
