"""Version 1 of the catalog's bytes, as nodes in the field have written them.

These bytes are for ever: software of every later version must read them to the same state (the upgrade rule in
docs/protocols/catalog.md). When one of these tests fails, the code is wrong, not the bytes; a new form is a new
version, with golden bytes of its own beside these.
"""

from __future__ import annotations

import hashlib

import pytest

from tests.core.golden_groups import ACTIVITY_CHANGES, GROUP_CHANGES
from tidelog.core.catalog import Batch, Catalog, decode_change, encode_change, kind_of
from tidelog.core.catalog.changes import KINDS

CHANGES = b"""\
{"cluster_id":"c105fe40","kind":"found_cluster","v":1}
{"kind":"admit_node","node":"n1","v":1}
{"kind":"admit_node","node":"n2","v":1}
{"kind":"admit_node","node":"n3","v":1}
{"addresses":[["link","n1.example:7400"]],"at_ms":1000,"capacity_bytes":1000000,"catalog_version":1,"clean_incar\
nation":null,"damaged_channels":[],"disk_id":"d15c6e310000","host":"host-n1","incarnation":1,"kind":"register_no\
de","known_incarnation":0,"node":"n1","process_id":"9a00000001","software":"tidelog 1","tags":["scope:harbour"],\
"v":1,"verified":true}
{"addresses":[["link","n2.example:7400"]],"at_ms":1000,"capacity_bytes":1000000,"catalog_version":1,"clean_incar\
nation":null,"damaged_channels":[],"disk_id":"d15c6e320000","host":"host-n2","incarnation":1,"kind":"register_no\
de","known_incarnation":0,"node":"n2","process_id":"9a00000001","software":"tidelog 1","tags":[],"v":1,"verified\
":true}
{"addresses":[["link","n3.example:7400"]],"at_ms":1000,"capacity_bytes":1000000,"catalog_version":1,"clean_incar\
nation":null,"damaged_channels":[],"disk_id":"d15c6e330000","host":"host-n3","incarnation":1,"kind":"register_no\
de","known_incarnation":0,"node":"n3","process_id":"9a00000001","software":"tidelog 1","tags":[],"v":1,"verified\
":true}
{"at_ms":1700000000000,"config":{"bandwidth_class":"foreground","factor":3,"fsync":"always","fsync_interval_ms":\
1000,"heartbeat_ms":500,"leader_pinned":"n1","min_isr":null,"on_under_capacity":"withdraw","persistent":true,"pi\
nned_nodes":[],"placement":"standard","placement_metadata":[["metadata.intent","hot"]],"replicated":true,"replic\
ation_budget_ppm":500000,"retention":{"max_age_ms":null,"max_bytes":1099511627776,"max_events":null},"skip_thres\
hold_bytes":104857600},"kind":"create_channel","leader":"n1","name":"boats/spray","replicas":["n1","n2","n3"],"v\
":1}
{"at_ms":1700000000001,"config":{"bandwidth_class":"background","factor":3,"fsync":"never","fsync_interval_ms":1\
000,"heartbeat_ms":500,"leader_pinned":null,"min_isr":2,"on_under_capacity":"evict_oldest","persistent":true,"pi\
nned_nodes":["n2","n3"],"placement":"pinned","placement_metadata":[],"replicated":true,"replication_budget_ppm":\
500000,"retention":{"max_age_ms":null,"max_bytes":null,"max_events":null},"skip_threshold_bytes":104857600},"kin\
d":"create_channel","leader":"n2","name":"scratch","replicas":["n2","n3"],"v":1}
{"channel_id":1,"expected_channel_epoch":1,"kind":"shrink_isr","members":["n2","n3"],"reason":"lagging","v":1}
{"channel_id":1,"expected_channel_epoch":2,"incarnation":1,"kind":"expand_isr","member":"n2","v":1}
{"channel_id":1,"config":{"bandwidth_class":"foreground","factor":3,"fsync":"always","fsync_interval_ms":1000,"h\
eartbeat_ms":250,"leader_pinned":null,"min_isr":null,"on_under_capacity":"withdraw","persistent":true,"pinned_no\
des":[],"placement":"standard","placement_metadata":[],"replicated":true,"replication_budget_ppm":500000,"retent\
ion":{"max_age_ms":null,"max_bytes":null,"max_events":null},"skip_threshold_bytes":104857600},"expected_channel_\
epoch":3,"kind":"alter_channel","replicas":null,"v":1}
{"channel_id":1,"expected_channel_epoch":4,"kind":"shrink_isr","members":["n2"],"reason":"stopping","v":1}
{"channel_id":1,"expected_channel_epoch":5,"kind":"pause_channel","v":1}
{"channel_id":1,"expected_channel_epoch":6,"kind":"resume_channel","v":1}
{"channel_id":1,"expected_channel_epoch":7,"kind":"set_readonly","readonly":true,"v":1}
{"addresses":[["link","n3.example:7400"]],"at_ms":1000,"capacity_bytes":1000000,"catalog_version":1,"clean_incar\
nation":null,"damaged_channels":[1],"disk_id":"d15c6e330000","host":"host-n3","incarnation":2,"kind":"register_n\
ode","known_incarnation":1,"node":"n3","process_id":"9a00000002","software":"tidelog 1","tags":[],"v":1,"verifie\
d":true}
{"addresses":[["link","n2.example:7400"]],"at_ms":1000,"capacity_bytes":1000000,"catalog_version":1,"clean_incar\
nation":null,"damaged_channels":[],"disk_id":"d15c6e320000","host":"host-n2","incarnation":2,"kind":"register_no\
de","known_incarnation":1,"node":"n2","process_id":"9a00000002","software":"tidelog 1","tags":[],"v":1,"verified\
":true}
{"changes":[{"expected_incarnation":2,"kind":"fence_node","node":"n2"},{"addresses":null,"capacity_bytes":7,"exp\
ected_incarnation":1,"host":null,"kind":"update_node","node":"n1","tags":null}],"kind":"batch","v":1}
{"addresses":[["link","n2.example:7400"]],"at_ms":2000,"capacity_bytes":1000000,"catalog_version":1,"clean_incar\
nation":null,"damaged_channels":[],"disk_id":"d15c6e320000","host":"host-n2","incarnation":3,"kind":"register_no\
de","known_incarnation":2,"node":"n2","process_id":"9a00000003","software":"tidelog 1","tags":[],"v":1,"verified\
":true}
{"at_ms":9,"channel_id":2,"expected_channel_epoch":1,"incarnation":2,"kind":"change_leader","leader":"n3","opera\
tor":"","reports":[{"incarnation":3,"last_epoch":1,"log_end":10,"node":"n2"},{"incarnation":2,"last_epoch":1,"lo\
g_end":12,"node":"n3"}],"v":1}
{"at_ms":3,"config":{"bandwidth_class":"foreground","factor":1,"fsync":"always","fsync_interval_ms":1000,"heartb\
eat_ms":500,"leader_pinned":null,"min_isr":null,"on_under_capacity":"withdraw","persistent":false,"pinned_nodes"\
:[],"placement":"standard","placement_metadata":[],"replicated":false,"replication_budget_ppm":500000,"retention\
":{"max_age_ms":null,"max_bytes":null,"max_events":null},"skip_threshold_bytes":104857600},"kind":"create_channe\
l","leader":"n1","name":"gone","replicas":["n1"],"v":1}
{"at_ms":4,"channel_id":3,"expected_channel_epoch":1,"kind":"delete_channel","v":1}
{"at_ms":5,"channel_id":1,"expected_epoch":null,"kind":"open_producer","name":"logger","owner":"operator:anna","\
v":1}
{"at_ms":6,"channel_id":2,"expected_epoch":0,"kind":"open_producer","name":"logger","owner":"boat:spray","v":1}
{"expected_epoch":1,"kind":"close_producer","producer_id":2,"v":1}
{"at_ms":7,"channels":["*"],"digest":"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef","expires\
_at_ms":99,"kind":"add_token","scopes":["read:data","read:status"],"token":"ci","v":1}
{"at_ms":8,"kind":"revoke_token","token":"ci","v":1}
{"at_ms":7,"channels":["boats/*"],"digest":"ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff","e\
xpires_at_ms":null,"kind":"add_token","scopes":["read:data"],"token":"old","v":1}
{"kind":"remove_token","token":"old","v":1}
{"channels":"boats/*","kind":"add_grant","principal":"operator:anna","scope":"admin:channels","v":1}
{"channels":"boats/spray","kind":"add_grant","principal":"boat:spray","scope":"write:data","v":1}
{"channels":"boats/spray","kind":"remove_grant","principal":"boat:spray","scope":"write:data","v":1}
{"kind":"admit_node","node":"n4","v":1}
{"force":false,"kind":"remove_node","node":"n4","v":1}
""".splitlines()
"""One change per line, in the order in which they were applied. All were accepted."""

SNAPSHOT_HEADER = bytes.fromhex(
    "746964656361740a01000000e10d0000000000006c0747c9142bfb1bea3e36b63ddb44fc11e2f281ef727026a74e8833e1df3ac1"
)
SNAPSHOT_BODY = b"""\
{"applied_index":35,"channels":[{"changed_index":16,"channel_epoch":8,"channel_id":1,"config":{"bandwidth_class"\
:"foreground","factor":3,"fsync":"always","fsync_interval_ms":1000,"heartbeat_ms":250,"leader_pinned":null,"min_\
isr":null,"on_under_capacity":"withdraw","persistent":true,"pinned_nodes":[],"placement":"standard","placement_m\
etadata":[],"replicated":true,"replication_budget_ppm":500000,"retention":{"max_age_ms":null,"max_bytes":null,"m\
ax_events":null},"skip_threshold_bytes":104857600},"created_at_ms":1700000000000,"created_index":8,"eligible":[{\
"incarnation":1,"keeps":"synced","node":"n2"}],"isr":[{"incarnation":1,"keeps":"synced","node":"n1"}],"leader":"\
n1","leader_epoch":2,"leader_incarnation":1,"name":"boats/spray","paused":false,"readonly":true,"replicas":["n1"\
,"n2","n3"],"unclean":[]},{"changed_index":21,"channel_epoch":2,"channel_id":2,"config":{"bandwidth_class":"back\
ground","factor":3,"fsync":"never","fsync_interval_ms":1000,"heartbeat_ms":500,"leader_pinned":null,"min_isr":2,\
"on_under_capacity":"evict_oldest","persistent":true,"pinned_nodes":["n2","n3"],"placement":"pinned","placement_\
metadata":[],"replicated":true,"replication_budget_ppm":500000,"retention":{"max_age_ms":null,"max_bytes":null,"\
max_events":null},"skip_threshold_bytes":104857600},"created_at_ms":1700000000001,"created_index":9,"eligible":[\
],"isr":[{"incarnation":2,"keeps":"written","node":"n3"}],"leader":"n3","leader_epoch":2,"leader_incarnation":2,\
"name":"scratch","paused":false,"readonly":false,"replicas":["n2","n3"],"unclean":[{"at_ms":9,"cause":"reports",\
"index":21,"leader":"n3","leader_epoch":2,"operator":""}]}],"cluster_id":"c105fe40","grants":[{"channels":"boats\
/*","principal":"operator:anna","scope":"admin:channels"}],"next_channel_id":4,"next_producer_id":3,"nodes":[{"a\
ddresses":[["link","n1.example:7400"]],"capacity_bytes":7,"catalog_version":1,"changed_index":19,"damaged":[],"d\
isk_id":"d15c6e310000","host":"host-n1","incarnation":1,"memory_since":1,"node":"n1","process_id":"9a00000001","\
registered_at_ms":1000,"software":"tidelog 1","state":"active","synced_since":1,"tags":["scope:harbour"],"writte\
n_since":1},{"addresses":[["link","n2.example:7400"]],"capacity_bytes":1000000,"catalog_version":1,"changed_inde\
x":20,"damaged":[],"disk_id":"d15c6e320000","host":"host-n2","incarnation":3,"memory_since":3,"node":"n2","proce\
ss_id":"9a00000003","registered_at_ms":2000,"software":"tidelog 1","state":"active","synced_since":1,"tags":[],"\
written_since":3},{"addresses":[["link","n3.example:7400"]],"capacity_bytes":1000000,"catalog_version":1,"change\
d_index":17,"damaged":[{"channel_id":1,"incarnation":2}],"disk_id":"d15c6e330000","host":"host-n3","incarnation"\
:2,"memory_since":2,"node":"n3","process_id":"9a00000002","registered_at_ms":1000,"software":"tidelog 1","state"\
:"active","synced_since":1,"tags":[],"written_since":2},{"addresses":[],"capacity_bytes":0,"catalog_version":0,"\
changed_index":35,"damaged":[],"disk_id":"","host":"","incarnation":0,"memory_since":0,"node":"n4","process_id":\
"","registered_at_ms":0,"software":"","state":"removed","synced_since":0,"tags":[],"written_since":0}],"producer\
s":[{"channel_id":1,"epoch":1,"name":"logger","opened_at_ms":5,"opened_index":24,"owner":"operator:anna","produc\
er_id":1}],"tokens":[{"channels":["*"],"created_at_ms":7,"digest":"0123456789abcdef0123456789abcdef0123456789abc\
def0123456789abcdef","expires_at_ms":99,"revoked_at_ms":8,"scopes":["read:data","read:status"],"token":"ci"}],"t\
ombstones":[{"channel_id":3,"deleted_at_ms":4,"deleted_index":23,"name":"gone"}]}"""


LATER_CHANGES = b"""\
{"at_ms":1700000000009,"channel_id":40,"config":{"bandwidth_class":"foreground","factor":1,"fsync":"always","fsyn\
c_interval_ms":1000,"heartbeat_ms":500,"leader_pinned":null,"min_isr":null,"on_under_capacity":"withdraw","persis\
tent":true,"pinned_nodes":[],"placement":"standard","placement_metadata":[],"replicated":true,"replication_budget\
_ppm":500000,"retention":{"max_age_ms":null,"max_bytes":null,"max_events":null},"skip_threshold_bytes":104857600}\
,"kind":"adopt_channel","name":"boats/old","newest_epoch":6,"node":"n1","v":1}
{"channel_id":40,"expected_channel_epoch":7,"kind":"raise_channel_epoch","v":1}
""".splitlines()
"""Kinds that came before version 1 was ever released, applied after those above. All were accepted."""

LATER_DIGEST = "21bd4595e6f8deab6cc8154cc54a7f4dffed47def97cf0f9175043be8839c346"
"""The digest of the catalog after all of them."""


def test_version_1_changes_are_read_and_written_as_ever() -> None:
    seen = set()
    for line in [*CHANGES, *LATER_CHANGES, *GROUP_CHANGES, *ACTIVITY_CHANGES]:
        change = decode_change(line)
        assert encode_change(change) == line
        seen.add(kind_of(change))
        if isinstance(change, Batch):
            seen.update(kind_of(single) for single in change.changes)
    assert seen == set(KINDS), "a kind without golden bytes"


def test_version_1_changes_lead_to_the_same_snapshot_as_ever() -> None:
    catalog = Catalog()
    for index, line in enumerate(CHANGES, start=1):
        assert catalog.apply(index, decode_change(line)).refusal is None
    assert catalog.snapshot() == SNAPSHOT_HEADER + SNAPSHOT_BODY
    assert catalog.digest() == hashlib.sha256(SNAPSHOT_BODY).digest()


def test_kinds_that_came_later_lead_to_the_same_state_as_ever() -> None:
    catalog = Catalog.restore(SNAPSHOT_HEADER + SNAPSHOT_BODY)
    for index, line in enumerate(LATER_CHANGES, start=len(CHANGES) + 1):
        assert catalog.apply(index, decode_change(line)).refusal is None
    adopted = catalog.channel("boats/old")
    assert adopted is not None
    assert (adopted.channel_id, adopted.leader_epoch, adopted.channel_epoch) == (40, 7, 8)
    assert (adopted.replicas, adopted.leader, adopted.isr_nodes) == (("n1",), "n1", ("n1",))
    assert Catalog.restore(catalog.snapshot()).digest() == catalog.digest()
    assert catalog.digest().hex() == LATER_DIGEST


def test_a_version_1_snapshot_is_restored_as_ever() -> None:
    catalog = Catalog.restore(SNAPSHOT_HEADER + SNAPSHOT_BODY)
    assert catalog.snapshot() == SNAPSHOT_HEADER + SNAPSHOT_BODY
    assert catalog.contradictions() == []
    assert catalog.cluster_id == "c105fe40"
    assert [record.node for record in catalog.nodes()] == ["n1", "n2", "n3"]
    assert [channel.name for channel in catalog.channels()] == ["boats/spray", "scratch"]
    assert catalog.was_deleted(3)


@pytest.mark.parametrize("cut", range(0, len(CHANGES) + 1, 3))
def test_c14_a_snapshot_anywhere_on_the_way_makes_no_difference(cut: int) -> None:
    catalog = Catalog()
    for index, line in enumerate(CHANGES, start=1):
        if index == cut:
            catalog = Catalog.restore(catalog.snapshot())
        catalog.apply(index, decode_change(line))
    assert catalog.snapshot() == SNAPSHOT_HEADER + SNAPSHOT_BODY
