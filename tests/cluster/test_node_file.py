"""What a node remembers of itself: incarnations are never used twice, a clean stop is believed once."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tidelog.blocks.messages import encode_values
from tidelog.cluster.node.core_parts import NodeFacts
from tidelog.cluster.node.node_file import NODE_FILE, NodeFile
from tidelog.cluster.node.registration import Registration
from tidelog.core.catalog import AdmitNode, Catalog, RegisterNode
from tidelog.core.catalog.records import DAMAGED_MAX
from tidelog.errors import InvalidConfig
from tidelog.sim.disk import SimDisk
from tidelog.storage.log.options import LogOptions
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store.channel_logs import ChannelLogConfig, ChannelLogs
from tidelog.storage.store.recovery import open_store


def opened(folder: Path) -> NodeFile:
    return NodeFile(OsDisk(folder), ".tidelog", node="n1")


def test_every_incarnation_is_new_and_on_disk_before_it_is_used(tmp_path: Path) -> None:
    """NF1."""
    assert opened(tmp_path).raise_incarnation(0) == 1
    file = opened(tmp_path)
    assert file.known_incarnation == 1
    assert file.raise_incarnation(0) == 2
    assert file.raise_incarnation(10) == 11
    assert opened(tmp_path).raise_incarnation(0) == 12


def test_the_mark_of_a_clean_stop_is_believed_once(tmp_path: Path) -> None:
    """NF2."""
    file = opened(tmp_path)
    file.stopped_cleanly(file.raise_incarnation(0))
    assert opened(tmp_path).clean_incarnation == 1
    assert opened(tmp_path).clean_incarnation is None


def test_a_process_that_never_registered_leaves_the_mark_it_found(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.stopped_cleanly(file.raise_incarnation(0))
    file = opened(tmp_path)
    file.raise_incarnation(0)
    file.stopped_cleanly(None)
    assert opened(tmp_path).clean_incarnation == 1


def test_a_doubt_about_the_logs_outlives_a_start_that_never_registered(tmp_path: Path) -> None:
    """NF3."""
    assert not opened(tmp_path).vouches(verified=False)
    file = opened(tmp_path)
    assert not file.vouches(verified=True), "the first start has repaired what it found, and reported nothing"
    file.registered()
    assert opened(tmp_path).vouches(verified=True)


def test_a_doubt_is_kept_by_a_clean_stop(tmp_path: Path) -> None:
    """NF3."""
    file = opened(tmp_path)
    file.vouches(verified=False)
    file.stopped_cleanly(None)
    assert not opened(tmp_path).vouches(verified=True)


def test_a_registration_is_known_and_what_was_only_asked_for_is_not(tmp_path: Path) -> None:
    """NF4: a copy from the past asks for an incarnation above the catalog's, and stays behind it."""
    file = opened(tmp_path)
    file.raise_incarnation(0)
    assert file.known_incarnation == 0
    file.registered()
    assert file.known_incarnation == 1
    file.raise_incarnation(1)
    assert file.known_incarnation == 1


def test_an_incarnation_that_this_disk_does_not_remember_leaves_a_doubt_until_the_catalog_knows(tmp_path: Path) -> None:
    """NF4: the next start would know as much as the catalog, and hold less."""
    file = opened(tmp_path)
    file.raise_incarnation(0)
    file.raise_incarnation(1)
    assert opened(tmp_path).vouches(verified=True), "all that were used, were used here"
    opened(tmp_path).raise_incarnation(5)
    file = opened(tmp_path)
    assert file.known_incarnation == 6
    assert not file.vouches(verified=True)
    file.registered()
    assert opened(tmp_path).vouches(verified=True)


def test_a_process_says_what_it_found_at_its_start_until_the_catalog_knows(tmp_path: Path) -> None:
    """R5: afterwards a lost session costs no copy its place again."""
    file, facts = opened(tmp_path), NodeFacts(verified=False, damaged_channels=(4,))
    registration = Registration(node="n1", process_id="p1", file=file, facts=facts)

    def said() -> RegisterNode:
        incarnation = registration.next_incarnation(None)
        registration.end()
        return registration.request(incarnation, disk_id="d1", at_ms=1)

    for first in (said(), said()):
        assert (first.known_incarnation, first.verified, first.damaged_channels) == (0, False, (4,))
    file.registered()
    again = said()
    assert (again.known_incarnation, again.verified, again.damaged_channels) == (2, True, ())


def test_a_node_with_more_damaged_channels_than_the_catalog_takes_can_register(tmp_path: Path) -> None:
    file, facts = opened(tmp_path), NodeFacts(verified=False, damaged_channels=tuple(range(1, DAMAGED_MAX + 2)))
    file.raise_incarnation(0)
    catalog = Catalog()
    catalog.apply(1, AdmitNode(node="n1"))
    registration = Registration(node="n1", process_id="91" * 4, file=file, facts=facts)
    said = registration.request(1, disk_id="d1" * 4, at_ms=1)
    assert not said.verified
    assert catalog.check(said) is None


def test_the_folder_of_another_node_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).raise_incarnation(0)
    with pytest.raises(InvalidConfig, match="belongs to node n1"):
        NodeFile(OsDisk(tmp_path), ".tidelog", node="n2")


@pytest.mark.parametrize("damaged", [NODE_FILE, f"{NODE_FILE}.copy"])
def test_one_damaged_copy_loses_nothing(tmp_path: Path, damaged: str) -> None:
    file = opened(tmp_path)
    file.belongs_to(b"c" * 16)
    file.raise_incarnation(7)
    path = tmp_path / ".tidelog" / damaged
    data = bytearray(path.read_bytes())
    data[12] ^= 1
    path.write_bytes(data)
    again = opened(tmp_path)
    assert (again.known_incarnation, again.state.cluster) == (8, (b"c" * 16).hex())


def test_a_store_tells_of_damage_until_its_node_says_that_the_catalog_knows() -> None:
    """NF3: the first opening writes what is whole anew, and remembers what it found."""
    disk = SimDisk(Random(1))
    store = open_store(disk, now_us=1)
    logs = ChannelLogs(store)
    logs.open(ChannelLogConfig(channel_id=1, name="spray", persistent=True, options=LogOptions()), 1)
    for offset in range(3):
        made = encode_values([b"wave"], time_us=1)
        block = made.stamp(
            base_offset=offset, channel_id=1, leader_epoch=1, append_time_us=1, durable_end=offset, path=0
        )
        assert logs.append([(1, [block])], 1)[0].error is None
    disk.crash()
    disk.flip_bit(".tidelog/wal/000000000001.wal", 70, 3)
    assert not ChannelLogs(open_store(disk, now_us=2)).verified
    disk.crash()
    again = ChannelLogs(open_store(disk, now_us=3))
    assert not again.verified
    again.forget_loss()
    disk.crash()
    assert ChannelLogs(open_store(disk, now_us=4)).verified
