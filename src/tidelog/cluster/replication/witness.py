"""Answers of one replica to the questions of an election: its log, and what it remembers of the channel.

Belongs to `ChannelReplica`. The memory is saved with the node's watermarks and loaded when the log is opened.

WS1  A question is answered as soon as it can be: the log is open, the node registered, and its catalog not older than
     the question, so that what an unclean election voided is not told (RM1). Only the newest question counts.
WS2  Below `protected_end` nothing is cut (FW6).
"""

from __future__ import annotations

from tidelog.cluster.replication.state import ReplicaState, Storage
from tidelog.core.catalog import ChannelRecord
from tidelog.core.replication.messages import AskLog, LogFacts, LogMemory
from tidelog.storage.store.watermarks import Watermark

SNAPSHOT_HINT = "snapshot"


class ReplicaWitness:
    def __init__(self, replica: ReplicaState) -> None:
        self._replica = replica
        self._question: tuple[str, AskLog] | None = None
        """The node that asked and its question, while there is no answer yet."""

    # --- what it remembers -------------------------------------------------------------------------------------

    def opened(self, mark: Watermark | None) -> tuple[int, int | None]:
        """The log was opened. Returns the saved committed end and the place of a snapshot (R9)."""
        if mark is None:
            return 0, None
        self._replica.memory.load(mark.hints, mark.committed_end)
        self.updated(self._replica.record)
        # What an unclean election has voided is not exposed as committed either.
        memory, committed_end = self._replica.memory, mark.committed_end
        if memory.epoch:
            committed_end = min(committed_end, memory.committed_end)
        return committed_end, mark.hints.get(SNAPSHOT_HINT)

    def watermark(self) -> Watermark:
        """The hints that are saved for the next process."""
        replica = self._replica
        replica.memory.held(replica.around.node, self._sound_end())
        snapshot = replica.fold_hint if replica.fold is None else replica.fold.snapshot_at
        hints = {} if snapshot is None else {SNAPSHOT_HINT: snapshot}
        return Watermark(committed_end=replica.committed_end, hints=hints | self._replica.memory.hints())

    def updated(self, record: ChannelRecord) -> None:
        """The catalog's record of the channel has changed, or was read again."""
        if record.unclean and self._replica.memory.elected_with_loss(record.unclean[-1].leader_epoch):
            # Until the new leader says what is committed, nothing is exposed that it may not hold.
            self._replica.committed_end = min(self._replica.committed_end, self._replica.log_start)
        self.answer()

    # --- what it is asked ----------------------------------------------------------------------------------------

    def on_ask_log(self, peer: str, question: AskLog) -> None:
        self._question = peer, question
        self.answer()

    def answer(self) -> None:
        """WS1."""
        replica, around = self._replica, self._replica.around
        if self._question is None or replica.storage is not Storage.READY or around.incarnation == 0:
            return
        peer, question = self._question
        if replica.record.channel_epoch < question.channel_epoch:
            return
        self._question = None
        end = self._sound_end()
        replica.memory.held(around.node, end)
        facts = LogFacts(
            channel_id=replica.channel_id,
            channel_epoch=question.channel_epoch,
            incarnation=around.incarnation,
            last_epoch=replica.last_epoch(end),
            log_end=end,
            memory=self._replica.memory.told() if question.with_memory else LogMemory(),
        )
        if peer == around.node:
            replica.out.tell_metadata(facts)  # no link leads from a node to itself
        else:
            replica.out.send(peer, facts)

    def _sound_end(self) -> int:
        return min(self._replica.held_end, self._replica.sound_end)
