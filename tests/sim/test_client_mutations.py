"""The tests of clients and gateways prove themselves: break a rule on purpose, and the test of that rule must fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.client import test_producing, test_recreated
from tests.cluster import test_client_rechecks
from tests.gateways import test_liftbridge_gathering, test_liftbridge_quirks, test_liftbridge_stale
from tests.sim.mutations import Edit, plant
from tidelog.client.producing.core import ProducerCore
from tidelog.client.routes import Routes
from tidelog.cluster.clients.rechecks import Rechecks
from tidelog.errors import LogError
from tidelog.gateways.liftbridge.expected import ExpectedOffsets
from tidelog.gateways.liftbridge.publish import GatewayPublishing
from tidelog.gateways.liftbridge.publish_async import AsyncStream, _Run
from tidelog.gateways.liftbridge.streams import Streams

Test = Callable[[Path, pytest.MonkeyPatch], Coroutine[Any, Any, None] | None]

MUTATIONS: dict[str, tuple[Edit, Test]] = {
    "CRO3: a deleted channel learned again": (
        Edit(Routes, "learn", "if route.channel_id <= self._deleted.get(route.name, 0):", "if False:"),
        lambda *_: test_recreated.test_a_deleted_channel_is_not_learned_again_from_a_node_that_is_behind(),
    ),
    "CP5: a producer keeps its identity in the channel that was created again": (
        Edit(ProducerCore, "recreated", "self._needs_identity = True", "pass"),
        lambda *_: (
            test_producing.test_cp5_in_a_channel_that_was_created_again_all_is_numbered_anew_under_a_new_identity()
        ),
    ),
    "CP6: a block that a pause stopped half way is given up where somebody would resume": (
        Edit(ProducerCore, "answered", "self._outlasts_pause and", "False and"),
        lambda *_: (
            test_producing.test_cp6_what_a_pause_stopped_half_way_is_sent_again_under_its_seqs_where_somebody_resumes()
        ),
    ),
    "LU5: a message is sent again after one pause alone": (
        Edit(GatewayPublishing, "_send", "time.monotonic() < give_up_s", "until_s is None"),
        lambda folder, _: (
            test_liftbridge_stale.test_a_message_that_meets_one_pause_after_the_other_is_sent_again_after_each(
                folder, checked=False, is_async=False
            )
        ),
    ),
    "LS5: an old catalog's refusal is given": (
        Edit(Streams, "judged", "await self.look_again()", "pass"),
        lambda folder, patch: test_liftbridge_stale.test_a_subscription_begins_that_only_an_old_catalog_refuses(
            folder, patch, what="grant"
        ),
    ),
    "RC1: what comes behind a block that is judged again overtakes it": (
        Edit(Rechecks, "holds", "return key in self._queues", "return False"),
        lambda *_: test_client_rechecks.test_what_comes_behind_a_block_that_is_judged_again_waits_behind_it(),
    ),
    "EX1: a message at an expected offset counts as none": (
        Edit(ExpectedOffsets, "_is_unwritten", "if holds_data(block):", "if False:"),
        lambda folder, _: (
            test_liftbridge_quirks.test_of_many_who_expect_the_same_offset_one_is_taken_and_those_behind_it_count_on_it(
                folder
            )
        ),
    ),
    "LS4: a node that is not reached is shown at its own address": (
        Edit(Streams, "_broker", " and is_reached", ""),
        test_liftbridge_stale.test_a_node_that_is_gone_and_not_fenced_yet_is_shown_at_the_node_that_was_asked,
    ),
    "messages for another partition end what was gathered": (
        Edit(
            AsyncStream,
            "_joins",
            "run = self._runs.get(place)",
            "run = self._runs.get(place)\n    if run is None:\n        self._send_runs()",
        ),
        lambda folder, patch: (
            test_liftbridge_gathering.test_messages_of_all_shapes_for_all_partitions_become_few_blocks(
                folder, patch, keyed=False, partitions=6
            )
        ),
    ),
    "messages with a key go alone": (
        Edit(_Run, "add", "row = Message(self.time_us, value, key or None, headers)", "return False"),
        lambda folder, patch: (
            test_liftbridge_gathering.test_messages_of_all_shapes_for_all_partitions_become_few_blocks(
                folder, patch, keyed=True, partitions=1
            )
        ),
    ),
}


def carry_out(test: Test, folder: Path, patch: pytest.MonkeyPatch) -> None:
    running = test(folder, patch)
    if running is not None:
        asyncio.run(running)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_rule_of_the_clients_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    edit, test = MUTATIONS[name]
    plant(monkeypatch, edit)
    with pytest.raises((AssertionError, LogError, TimeoutError, ExceptionGroup, grpc.aio.AioRpcError)):
        carry_out(test, tmp_path, monkeypatch)
