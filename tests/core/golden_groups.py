"""Changes of consumer groups as version 1 has them, beside those of `test_catalog_golden`: for ever, like those."""

from __future__ import annotations

GROUP_CHANGES = b"""\
{"again":false,"at_ms":1700000000010,"channels":["boats/*","scratch"],"coordinator":"n1","group":"billing","kind":"join_group","member":"anna-1","owner":"client:billing","streams":[],"v":1}
{"again":true,"at_ms":1700000000011,"channels":["boats/*"],"coordinator":"n3","group":"billing","kind":"join_group","member":"berta-1","owner":"client:billing","streams":["scratch"],"v":1}
{"coordinator":"n3","expected_coordinator_epoch":1,"group":"billing","kind":"change_coordinator","v":1}
{"coordinator_epoch":2,"group":"billing","kind":"expel_member","life":36,"member":"anna-1","v":1}
{"again":true,"at_ms":1700000000012,"channels":["*"],"coordinator":"n1","group":"gone","kind":"join_group","member":"c","owner":"operator:anna","streams":[],"v":1}
{"group":"gone","kind":"delete_group","v":1}
{"again":true,"at_ms":1700000000013,"channels":["*"],"coordinator":"n1","group":"left","kind":"join_group","member":"c","owner":"operator:anna","streams":[],"v":1}
{"group":"left","kind":"leave_group","life":null,"member":"c","v":1}
{"at_ms":14,"channel_id":2,"expected_channel_epoch":2,"kind":"delete_channel","v":1}
{"expected_epoch":3,"group":"billing","kind":"balance_group","v":1}
{"again":true,"at_ms":1700000000015,"channels":["boats/*"],"coordinator":"n1","group":"billing","kind":"join_group","member":"cora-1","owner":"client:billing","streams":[],"v":1}
""".splitlines()
"""Applied after the first snapshot of `test_catalog_golden`. All are accepted."""

ACTIVITY_CHANGES = b"""\
{"at_ms":20,"config":{"bandwidth_class":"foreground","factor":1,"fsync":"always","fsync_interval_ms":1000,"heartbeat_ms":500,"leader_pinned":null,"min_isr":null,"on_under_capacity":"withdraw","persistent":true,"pinned_nodes":[],"placement":"standard","placement_metadata":[],"replicated":false,"replication_budget_ppm":500000,"retention":{"max_age_ms":null,"max_bytes":null,"max_events":null},"skip_threshold_bytes":104857600},"kind":"create_channel","leader":"n1","name":"__activity","replicas":["n1"],"v":1}
{"channel_id":1,"expected_channel_epoch":8,"kind":"pause_channel","v":1}
{"again":false,"at_ms":21,"channels":["boats/*"],"coordinator":"n1","group":"g","kind":"join_group","member":"m","owner":"client:c","streams":[],"v":1}
{"kind":"forget_activity","upto_index":37,"v":1}
""".splitlines()
"""Applied after the same snapshot. All are accepted."""
