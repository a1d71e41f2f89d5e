"""What clients of a cluster saw, and whether one register per channel could have shown it to them: linearizability.

Every write is a compare-and-set from one channel epoch to the next and carries a mark of its own. So the order of all
that happened to a channel is known: write 1, the reads of epoch 1, write 2, the reads of epoch 2, and so on. The
history is linearizable if and only if no operation returned before something that stands earlier in that order was
asked for. A write whose outcome is unknown counts where later operations need it, and nowhere else.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

NEVER_NS = 1 << 62


@dataclass(slots=True, kw_only=True)
class Operation:
    """One read or write of one client. `epoch` is what a read found, and what a write made."""

    channel: str
    is_write: bool
    asked_ns: int
    returned_ns: int = NEVER_NS
    epoch: int = 0
    mark: str = ""
    outcome: str = "unknown"
    """ok, refused (certainly without effect) or unknown."""
    node: str = ""


@dataclass(slots=True)
class History:
    operations: list[Operation] = field(default_factory=list)

    def begin(self, channel: str, *, is_write: bool, epoch: int = 0, mark: str = "", node: str = "") -> Operation:
        operation = Operation(
            channel=channel, is_write=is_write, asked_ns=time.monotonic_ns(), epoch=epoch, mark=mark, node=node
        )
        self.operations.append(operation)
        return operation

    def acked(self) -> list[Operation]:
        return [one for one in self.operations if one.is_write and one.outcome == "ok"]

    def counts(self) -> dict[str, int]:
        found: dict[str, int] = defaultdict(int)
        for one in self.operations:
            found[f"{'write' if one.is_write else 'read'} {one.outcome}"] += 1
        return dict(sorted(found.items()))

    def next_ack_after(self, moment_ns: int, *, without: str = "") -> int | None:
        """When the first change returned that was asked for after this moment and acknowledged; not of that channel."""
        found = (one.returned_ns for one in self.acked() if one.asked_ns >= moment_ns and one.channel != without)
        return min(found, default=None)


def violations(history: History, *, first_epoch: int = 1) -> list[str]:
    """Everything that no linearizable register could have shown; empty if all is well."""
    by_channel: dict[str, list[Operation]] = defaultdict(list)
    for operation in history.operations:
        by_channel[operation.channel].append(operation)
    return [line for name, found in sorted(by_channel.items()) for line in _of_channel(name, found, first_epoch)]


def _of_channel(channel: str, operations: list[Operation], first_epoch: int) -> Iterator[str]:
    reads: dict[int, list[Operation]] = defaultdict(list)
    for one in operations:
        if not one.is_write and one.outcome == "ok":
            reads[one.epoch].append(one)
    writes = [one for one in operations if one.is_write and one.outcome != "refused"]
    acked: dict[int, list[Operation]] = defaultdict(list)
    unknown: dict[int, list[Operation]] = defaultdict(list)
    for one in writes:
        (acked if one.outcome == "ok" else unknown)[one.epoch].append(one)
    last = max([*reads, *acked, first_epoch])
    latest_ask_ns, latest = 0, "the beginning"
    for epoch in range(first_epoch, last + 1):
        if len(acked[epoch]) > 1:
            marks = ", ".join(one.mark for one in acked[epoch])
            yield f"{channel}: {len(acked[epoch])} writes were acknowledged at epoch {epoch}: {marks}"
        if epoch > first_epoch:
            write = _writer(acked[epoch], unknown[epoch], reads[epoch])
            if write is None:
                yield f"{channel}: epoch {epoch} was seen or passed, and nobody can have written it"
                continue
            if write.returned_ns < latest_ask_ns:
                yield f"{channel}: the write of epoch {epoch} returned before {latest} was asked for"
            if write.asked_ns > latest_ask_ns:
                latest_ask_ns, latest = write.asked_ns, f"the write of epoch {epoch}"
            for read in reads[epoch]:
                if read.mark != write.mark:
                    yield f"{channel}: epoch {epoch} holds {write.mark}, and a read found {read.mark}"
        for read in reads[epoch]:
            if read.returned_ns < latest_ask_ns:
                yield f"{channel}: a read of epoch {epoch} at {read.node} returned before {latest} was asked for"
        # A read orders what comes after its epoch, and not the other reads of it.
        newest = max(reads[epoch], key=lambda read: read.asked_ns, default=None)
        if newest is not None and newest.asked_ns > latest_ask_ns:
            latest_ask_ns, latest = newest.asked_ns, f"a read of epoch {epoch} at {newest.node}"


def _writer(acked: list[Operation], unknown: list[Operation], reads: Iterable[Operation]) -> Operation | None:
    """Who wrote an epoch: who was told so, else of those who do not know the one that reads show, else the earliest."""
    if acked:
        return acked[0]
    marks = {read.mark for read in reads}
    candidates = [one for one in unknown if not marks or one.mark in marks]
    return min(candidates, key=lambda one: one.asked_ns, default=None)
