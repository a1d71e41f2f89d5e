"""Elections of channel leaders by the metadata leader: the replicas' logs are compared before one of them leads.

The catalog knows which replicas may lead from the history of their nodes. A disk that lost acknowledged data makes that
wrong, so every election asks the available replicas for the ends of their logs and what they remember of the others',
and takes the most complete one (EL5). That costs one round trip; a replica that does not answer within a fraction of
the channel's heartbeat is not waited for, if another one that can lead has answered.

CE1  A replica is elected only if it has answered in the incarnation that is to lead.
CE2  A replica that has not joined the ISR since its node started is elected by comparison only. After an unclean stop a
     majority of the replicas (ISR and eligible) must have answered, so that none of a minority of disks that lost data
     can lead (KIP-966); after a clean stop such a majority is waited for `CLEAN_WAIT_MS`.
CE3  A replica that lacks records which any answering replica knows to be committed is not elected. If none is left, an
     operator decides.
CE4  If every replica may have lost records by the catalog, all must have answered; the longest log leads, and that is
     recorded (R5).
CE5  A leader that resigned leads again, in a new epoch, if none of the others that can lead by the catalog can lead by
     comparison; those that have not answered are waited for `ABLE_WAIT_MS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from tidelog.core.catalog import Basis, Candidates, Catalog, ChangeLeader, ChannelRecord, LogReport, Member, NodeState
from tidelog.core.replication.election import most_complete, winner
from tidelog.core.replication.messages import AskLog, LogFacts, LogMemory, ReplicationMessage
from tidelog.core.replication.options import ReplicationOptions

CLEAN_WAIT_MS: Final = 2_000
"""After a clean stop of all replicas: how long the first that is back waits for a majority of them."""
ABLE_WAIT_MS: Final = 2_000
"""How long a leader that resigned is not elected again because another one that can lead has not answered."""
ANSWER_MS_MIN: Final = 20
ANSWER_MS_MAX: Final = 250
"""Bounds of how long an election waits for an answer; between them a quarter of the channel's heartbeat."""
SAY_MS: Final = 5_000


@dataclass(slots=True)
class _Questions:
    """The replicas that were asked for the ends of their logs, for one channel at one epoch."""

    channel_epoch: int
    since_ms: int
    asked_ms: int
    said_ms: int = -SAY_MS
    rounds: int = 0
    is_old: bool = False
    """The answers gave no leader: they may be older than the last messages of the leader that is gone."""
    facts: dict[str, LogFacts] = field(default_factory=dict)


class Elections:
    def __init__(
        self, *, options: ReplicationOptions, send: Callable[[str, ReplicationMessage], None], say: Callable[..., None]
    ) -> None:
        self._options = options
        self._send = send
        self._say = say
        self._questions: dict[int, _Questions] = {}

    def clear(self) -> None:
        self._questions.clear()

    def forget(self, channel_id: int) -> None:
        self._questions.pop(channel_id, None)

    def answered(self, peer: str, facts: LogFacts) -> bool:
        """Whether an election waits for it."""
        questions = self._questions.get(facts.channel_id)
        if questions is None or questions.channel_epoch != facts.channel_epoch:
            return False
        before = questions.facts.get(peer)
        if before is not None and before.incarnation == facts.incarnation and facts.memory == LogMemory():
            # The answer to a question that did not ask for its memory: what it reported before still counts (EL5).
            facts = replace(facts, memory=before.memory)
        questions.facts[peer] = facts
        return True

    # --- asking ------------------------------------------------------------------------------------------------

    def _ask(self, catalog: Catalog, channel: ChannelRecord, nodes: list[str], now_ms: int) -> _Questions:
        """Ask these replicas, and repeat the question to those that do not answer; all of them if their answers gave no
        leader. Answers of an earlier incarnation do not count (CE1)."""
        key = channel.channel_id
        questions = self._questions.get(key)
        if questions is None or questions.channel_epoch != channel.channel_epoch:
            questions = _Questions(channel.channel_epoch, now_ms, now_ms - self._options.repeat_ms)
            self._questions[key] = questions
        active = {node: record.incarnation for node in nodes if (record := catalog.node(node)) is not None}
        questions.facts = {
            node: facts for node, facts in questions.facts.items() if active.get(node) == facts.incarnation
        }
        if now_ms - questions.asked_ms >= self._options.repeat_ms:
            questions.asked_ms = now_ms
            questions.rounds += 1
            everybody, questions.is_old = questions.is_old, False
            # A node of an older version does not know the longer question, and answers the next one.
            question = AskLog(
                channel_id=key, channel_epoch=channel.channel_epoch, with_memory=questions.rounds % 2 == 1
            )
            for node in nodes:
                if everybody or node not in questions.facts:
                    self._send(node, question)
        return questions

    def wait_ms(self, channel: ChannelRecord, now_ms: int) -> int:
        """How long until an election that found no leader is repeated, if no answer comes."""
        questions = self._questions.get(channel.channel_id)
        if questions is None:
            return self._options.repeat_ms
        first_ms = questions.since_ms + _answer_ms(channel) - now_ms
        return first_ms if first_ms > 0 else max(1, questions.asked_ms + self._options.repeat_ms - now_ms)

    # --- deciding ----------------------------------------------------------------------------------------------

    def elect(
        self,
        catalog: Catalog,
        channel: ChannelRecord,
        *,
        able: list[str],
        last_resort: str | None = None,
        is_silent: Callable[[str], bool],
        median_rtt_us: Callable[[str], int | None],
        now_ms: int,
    ) -> str | None:
        """The winner; None while answers are missing, or if no replica can lead. Called until the catalog shows a
        leader. `last_resort` wins only if none of `able` can (CE5)."""
        first = able[0] if able else last_resort
        if first is None or channel.replicas == (first,):
            return first  # none, or the only copy: there is nothing to compare it with
        active = [node for node in channel.replicas if _is_active(catalog, node)]
        questions = self._ask(catalog, channel, active, now_ms)
        missing = [node for node in active if node not in questions.facts and not is_silent(node)]
        waited_ms = now_ms - questions.since_ms
        if missing and waited_ms < _answer_ms(channel):
            return None
        best = self._compare(catalog, channel, questions, able, now_ms)
        if not best and last_resort is not None and (waited_ms >= ABLE_WAIT_MS or not {*able} & {*missing}):
            best = self._compare(catalog, channel, questions, [last_resort], now_ms)
        in_sync = [node for node in best if channel.member(node) is not None]
        return winner(in_sync or best, pinned=channel.config.leader_pinned, median_rtt_us=median_rtt_us)

    def _compare(
        self, catalog: Catalog, channel: ChannelRecord, questions: _Questions, nodes: list[str], now_ms: int
    ) -> list[str]:
        """Those of these nodes with the most complete logs; empty if none of them can lead (CE2, CE3)."""
        facts, waited_ms = questions.facts, now_ms - questions.since_ms
        heard = [node for node in nodes if node in facts]
        if not heard:
            return []
        holders = [member.node for member in _holders(catalog, channel)]
        reported = [node for node in holders if node in facts]
        if 2 * len(reported) <= len(holders) and not self._is_certain(catalog, channel, heard, waited_ms):
            self._tell(questions, channel, "waits for more replicas to compare", now_ms, answered=",".join(reported))
            return []
        best = most_complete(heard, facts, all_answered=len(reported) == len(holders))
        if not best:
            questions.is_old = True
            known = max(one.memory.committed_end for one in facts.values())
            ends = ",".join(f"{node}:{facts[node].log_end}" for node in sorted(heard))
            what = "nobody there holds all that was committed; start the missing nodes, or elect with --unclean"
            self._tell(questions, channel, what, now_ms, committed_end=known, ends=ends)
        return best

    def _is_certain(self, catalog: Catalog, channel: ChannelRecord, heard: list[str], waited_ms: int) -> bool:
        """CE2: whether one of these needs no majority to be compared with."""
        for node in heard:
            member, record = channel.member(node) or channel.eligible_member(node), catalog.node(node)
            if member is None or record is None:
                continue
            if member.incarnation == record.incarnation:
                return True
            if member.incarnation >= record.written_since and waited_ms >= CLEAN_WAIT_MS:
                return True
        return False

    def _tell(self, questions: _Questions, channel: ChannelRecord, what: str, now_ms: int, **facts: object) -> None:
        if now_ms - questions.said_ms >= SAY_MS:
            questions.said_ms = now_ms
            self._say(what, channel=channel.name, **facts)

    def by_reports(
        self, catalog: Catalog, channel: ChannelRecord, candidates: Candidates, *, at_ms: int, now_ms: int
    ) -> ChangeLeader | None:
        """CE4."""
        assert candidates.basis is Basis.REPORTS
        if candidates.waiting_for or not candidates.nodes:
            return None
        facts = self._ask(catalog, channel, list(candidates.nodes), now_ms).facts
        if set(facts) != set(candidates.nodes):
            return None
        reports = tuple(
            LogReport(node=node, incarnation=one.incarnation, last_epoch=one.last_epoch, log_end=one.log_end)
            for node, one in sorted(facts.items())
        )
        longest = max((report.last_epoch, report.log_end) for report in reports)
        leader = next(report for report in reports if (report.last_epoch, report.log_end) == longest)
        self.forget(channel.channel_id)
        self._say("elects by reports", channel=channel.name, leader=leader.node, log_end=leader.log_end)
        return ChangeLeader(
            channel_id=channel.channel_id,
            expected_channel_epoch=channel.channel_epoch,
            leader=leader.node,
            incarnation=leader.incarnation,
            at_ms=at_ms,
            reports=reports,
        )


def is_compared(catalog: Catalog, channel: ChannelRecord, node: str) -> bool:
    """Whether its leader added it to the ISR since its node started: its log was compared in this run (CE2). It may
    have left the ISR again and be eligible."""
    member, record = channel.member(node) or channel.eligible_member(node), catalog.node(node)
    return member is not None and record is not None and member.incarnation == record.incarnation


def who_can_lead(catalog: Catalog, channel: ChannelRecord, candidates: Candidates) -> list[str]:
    """The candidates, and eligible members beside an ISR that can lead: they hold as much, or more if a disk lost
    data."""
    more = [
        member.node
        for member in channel.eligible
        if member.node not in candidates.nodes
        and _is_active(catalog, member.node)
        and catalog.is_trusted(channel.channel_id, member)
    ]
    return [*candidates.nodes, *more]


def _holders(catalog: Catalog, channel: ChannelRecord) -> list[Member]:
    """ISR and eligible members whose node may still come back."""
    members = (*channel.isr, *channel.eligible)
    return [
        member
        for member in members
        if (record := catalog.node(member.node)) is not None and record.state is not NodeState.REMOVED
    ]


def _answer_ms(channel: ChannelRecord) -> int:
    return min(max(channel.config.heartbeat_ms // 4, ANSWER_MS_MIN), ANSWER_MS_MAX)


def _is_active(catalog: Catalog, node: str) -> bool:
    record = catalog.node(node)
    return record is not None and record.state is NodeState.ACTIVE
