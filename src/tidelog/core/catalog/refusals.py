"""Which invariant of the catalog a refusal keeps."""

from __future__ import annotations

from typing import Final

from tidelog.errors import LogError

_RULE_BY_CODE: Final = {
    "stale_channel_epoch": "C2",
    "leader_outside_isr": "C3",
    "not_in_replicas": "C3",
    "not_in_isr": "C3",
    "node_fenced": "C4",
    "unknown_node": "C4",
    "no_live_leader": "C4",
    "stale_incarnation": "C10",
    "not_electable": "C7",
    "last_holder": "C8",
    "unknown_channel": "C9",
    "channel_exists": "C9",
    "config_mismatch": "C5",
    "node_exists": "C10",
    "node_holds": "C11",
    "catalog_full": "C12",
    "invalid_change": "C12",
    "nothing_to_change": "C1",
    "unknown_producer": "C9",
    "producer_owned": "C9",
    "stale_producer_epoch": "C9",
    "token_exists": "C13",
    "unknown_token": "C13",
    "unknown_grant": "C13",
    "unknown_group": "C15",
    "unknown_member": "C15",
    "member_exists": "C15",
    "member_fenced": "C15",
    "stale_group_epoch": "C15",
}


def rule_of(error: LogError) -> str:
    """The number of the rule that a refusal keeps."""
    return _RULE_BY_CODE.get(error.code, "C1")
