"""This process's registration in the catalog: with which incarnation it asks for it, and whether it has it.

What the caller must keep: pass each new record of this node to `confirm`, and `end` the registration once the record
shows that it is over or the session has ended.

NRG1  Every registration of this process has a higher incarnation than any this disk or the catalog knows, on disk
      before it is sent (NC2).
"""

from __future__ import annotations

from dataclasses import replace

from tidelog.cluster.node.core_parts import NodeFacts
from tidelog.cluster.node.node_file import NodeFile
from tidelog.core.catalog import CATALOG_VERSION, NodeRecord, NodeState, RegisterNode
from tidelog.core.catalog.records import DAMAGED_MAX
from tidelog.core.node_messages import RegisterRefused


class Registration:
    def __init__(self, *, node: str, process_id: str, file: NodeFile, facts: NodeFacts) -> None:
        self.process_id = process_id
        self.file = file
        self.facts = facts if file.vouches(verified=facts.verified) else replace(facts, verified=False)
        self._node = node
        self._asked: int | None = None
        """The incarnation being registered, or registered."""
        self.is_valid = False
        self.is_leaving = False
        """The node stops on purpose and has itself fenced: it does not register again, and its stop is clean."""
        self.refusal: str | None = None
        """The leader's last reason against it."""
        self._above = 0

    @property
    def is_due(self) -> bool:
        return not self.is_valid and not self.is_leaving

    @property
    def incarnation(self) -> int:
        """0 while this process is not registered."""
        return (self._asked or 0) if self.is_valid else 0

    def next_incarnation(self, record: NodeRecord | None) -> int:
        """The one to ask for (NRG1); `record` is the catalog's of this node."""
        if self._asked is None:
            self._asked = self.file.raise_incarnation(max(self._above, 0 if record is None else record.incarnation))
        return self._asked

    def request(self, incarnation: int, *, disk_id: str, at_ms: int) -> RegisterNode:
        """Losses that the process found at its start are reported until the catalog knows them: losing the session
        later removes no copy (R5). The catalog takes at most `DAMAGED_MAX` channels: beyond that the whole disk is
        reported as unverified."""
        file, facts = self.file, self.facts
        damaged = () if file.is_told else facts.damaged_channels
        is_countable = len(damaged) <= DAMAGED_MAX
        return RegisterNode(
            node=self._node,
            incarnation=incarnation,
            known_incarnation=file.known_incarnation,
            disk_id=disk_id,
            process_id=self.process_id,
            clean_incarnation=file.clean_incarnation,
            verified=(facts.verified and is_countable) or file.is_told,
            damaged_channels=damaged if is_countable else (),
            addresses=facts.addresses,
            host=facts.host,
            tags=facts.tags,
            capacity_bytes=facts.capacity_bytes,
            software=facts.software,
            catalog_version=CATALOG_VERSION,
            at_ms=at_ms,
        )

    def confirm(self, record: NodeRecord) -> bool:
        """Whether the catalog's record of this node shows this registration; it is valid from then on."""
        if record.process_id != self.process_id or record.incarnation != self._asked:
            return False
        self.file.registered()  # also if it was fenced before it heard of it
        if record.state is not NodeState.ACTIVE:
            return False
        self.is_valid, self.refusal = True, None
        return True

    def is_awaited(self, record: NodeRecord) -> bool:
        """Whether the record is older than the registration that was asked for."""
        return self._asked is None or record.incarnation < self._asked

    def end(self) -> None:
        """It was fenced, or its session has ended: the next one has another incarnation."""
        self.is_valid = False
        self._asked = self._asked if self.is_leaving else None

    def refused(self, refusal: RegisterRefused) -> None:
        if self.is_valid:
            return  # late: it was registered since
        self.refusal = refusal.reason
        self._above = max(self._above, refusal.incarnation)
        if self._asked is not None and refusal.incarnation >= self._asked:
            self._asked = None  # used up, by a process of this node that this disk does not remember

    def stopped_cleanly(self) -> None:
        self.file.stopped_cleanly(self._asked if self.is_valid or self.is_leaving else None)
