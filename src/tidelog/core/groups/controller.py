"""Which node coordinates a group: decided by the metadata leader, carried out by changes of the catalog.

Nothing here does I/O. Every decision is a compare-and-set, so a late or wrong one is refused without harm; a change
that has not happened yet is proposed again.

What a caller must keep: call `tend` on every wake while this node leads the metadata, and `step_down` when it no longer
does.

GO1  A coordinator that is not active is replaced. One that is active is replaced if more than half of the members have
     reported it within the window, for the current coordinator epoch.
GO2  Of the nodes that are active, the one that coordinates the fewest groups is chosen, then the first by name; for a
     group that reads streams, one that Liftbridge's clients can reach, if there is any. A group that comes to read
     streams is moved to one.
GO3  Created and deleted channels change the assignments within one scan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidelog.core.catalog import (
    BalanceGroup,
    Catalog,
    Change,
    ChangeCoordinator,
    GroupRecord,
    NodeRecord,
    NodeState,
)
from tidelog.errors import LogError

SCAN_MS: Final = 500
"""How often every group is checked."""
AGAIN_MS: Final = 5_000
"""How long until the same change is proposed again."""
STREAMS_ADDRESS: Final = "liftbridge"
SCAN_STEP: Final = 20
"""How many groups are checked in one wake: the rest waits for the next."""


def choose_coordinator(catalog: Catalog, *, for_streams: bool, other_than: str | None = None) -> str | None:
    """The node that should coordinate a group; None if no node is active (GO2)."""

    def rank(record: NodeRecord) -> tuple[bool, int, str]:
        lacks_gateway = for_streams and not _serves_streams(catalog, record.node)
        return lacks_gateway, catalog.group_count(record.node), record.node

    active = [record for record in catalog.nodes() if record.state is NodeState.ACTIVE and record.node != other_than]
    return min(active, key=rank).node if active else None


class CoordinatorReports:
    """Reports of members that cannot reach their coordinator. Kept in memory by the metadata leader."""

    def __init__(self, *, window_ms: int) -> None:
        self._window_ms = window_ms
        self._reports: dict[str, tuple[int, dict[str, int]]] = {}
        """Group to (coordinator epoch, member to when)."""

    def report(self, group: GroupRecord, member: str, now_ms: int) -> bool:
        """Note a report; returns whether enough members have reported that another node should coordinate (GO1)."""
        epoch, reports = self._reports.get(group.group, (0, {}))
        if epoch != group.coordinator_epoch:
            reports = {}
        reports[member] = now_ms
        names = {one.member for one in group.members}
        fresh = {name: at_ms for name, at_ms in reports.items() if name in names and now_ms - at_ms <= self._window_ms}
        self._reports[group.group] = (group.coordinator_epoch, fresh)
        return 2 * len(fresh) > len(names)

    def forget(self, catalog: Catalog) -> None:
        """Drop reports about groups that are gone or have another coordinator already."""
        for name, (epoch, _) in list(self._reports.items()):
            group = catalog.group(name)
            if group is None or group.coordinator_epoch != epoch:
                del self._reports[name]


class GroupController:
    """What the metadata leader does for groups."""

    def __init__(self, *, say: Callable[..., None]) -> None:
        self._say = say
        self._due_ms = 0
        self._scan: list[str] = []
        """Groups still to be checked in this scan."""
        self._proposed: dict[tuple[str, int, int], int] = {}
        """(group, epoch, coordinator epoch) to when something was proposed for it."""
        self._balanced: dict[str, tuple[int, int]] = {}
        """(epoch, channels index) at which a group was found to need nothing."""

    def step_down(self) -> None:
        self._due_ms = 0
        self._scan.clear()
        self._proposed.clear()
        self._balanced.clear()

    def tend(self, catalog: Catalog, propose: Callable[[Change], None], now_ms: int) -> None:
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + SCAN_MS
            self._begin_scan(catalog, now_ms)
        step, self._scan = self._scan[:SCAN_STEP], self._scan[SCAN_STEP:]
        if not step:
            return
        needing = {group.group for group in catalog.groups_needing_coordinator()}
        for name in step:
            group = catalog.group(name)
            if group is None or (group.group, group.epoch, group.coordinator_epoch) in self._proposed:
                continue
            change = self._wanted(catalog, group, is_orphan=name in needing)
            if change is None:
                continue
            try:
                propose(change)
            except LogError:
                self._scan.clear()
                return  # proposing is not possible now; the next scan tries again
            self._proposed[(group.group, group.epoch, group.coordinator_epoch)] = now_ms
            if isinstance(change, ChangeCoordinator):
                self._say("group", group=name, coordinator=change.coordinator, before=group.coordinator)

    def _begin_scan(self, catalog: Catalog, now_ms: int) -> None:
        """Start a scan of all groups, which takes a few groups per wake."""
        if self._scan:
            return
        self._scan = [group.group for group in catalog.groups()]
        self._proposed = {key: at_ms for key, at_ms in self._proposed.items() if now_ms - at_ms < AGAIN_MS}
        if self._balanced:
            self._balanced = {name: self._balanced[name] for name in self._scan if name in self._balanced}

    def _wanted(self, catalog: Catalog, group: GroupRecord, *, is_orphan: bool) -> Change | None:
        if is_orphan or (reads_streams(group) and not _serves_streams(catalog, group.coordinator)):
            heir = choose_coordinator(catalog, for_streams=reads_streams(group), other_than=group.coordinator)
            if heir is not None and (is_orphan or _serves_streams(catalog, heir)):
                return move_to(group, heir)
            if is_orphan:
                return None
        standing = (group.epoch, catalog.channels_index)
        if self._balanced.get(group.group) == standing:
            return None
        if catalog.needs_balance(group):
            change = BalanceGroup(group=group.group, expected_epoch=group.epoch)
            refusal = catalog.check(change)
            if refusal is None:
                return change
            self._say("channels are not assigned", group=group.group, reason=refusal)
        self._balanced[group.group] = standing
        return None


def _serves_streams(catalog: Catalog, node: str) -> bool:
    """Whether Liftbridge's clients can reach the node."""
    record = catalog.node(node)
    return record is not None and STREAMS_ADDRESS in dict(record.addresses)


def reads_streams(group: GroupRecord) -> bool:
    return any(member.streams for member in group.members)


def move_to(group: GroupRecord, coordinator: str) -> ChangeCoordinator:
    return ChangeCoordinator(
        group=group.group, expected_coordinator_epoch=group.coordinator_epoch, coordinator=coordinator
    )
