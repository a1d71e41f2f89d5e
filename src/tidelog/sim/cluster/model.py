"""What must hold of replicated channels: an account of every log, of what was committed and of what clients were told.

The model hears of every block as it is ordered, of every order of storage as it is done, looks at a replica whenever it
moved, at messages as they leave, and at every answer to a client. It knows no progress, no requests and no timers. All
that the metadata's model checks is checked here too. The numbers are those of design.md, section 10.

1   What was committed is in the log of every leader from then on, up to what retention removed.
2   One (epoch, offset) is one block, wherever it is. No log skips an offset.
3   One leader in an epoch, in one process, for one time; and it is the one that the catalog names.
4   What a leader says is committed never goes back, and a replica exposes nothing else.
5   What is committed is durable, as its channel promises, on every member of the ISR and on every eligible one, and the
    leader saw at least `min_isr` members. What a replica acknowledges is durable there.
6   Blocks of one producer follow each other: none twice, none left out.
7   Who may have lost something leads nothing that it does not hold: the same check as 1, when it begins.

An election that may lose records is on record in the catalog: there, and only there, the account is cut to what the new
leader holds.

That a channel takes writes again after the faults (14) is not promised where every replica that the catalog trusts has
lost committed records, and it doubts those that hold them: the catalog elects none of these by itself (C7), so an
operator decides. `liars.may_lie` does not bring this about.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from tidelog.blocks.block import Block
from tidelog.blocks.control import ChannelSnapshot, decode_control
from tidelog.blocks.header import BlockKind
from tidelog.cluster.replication.leading import Leading
from tidelog.cluster.replication.replica import ChannelReplica
from tidelog.core.catalog import Applied, ChannelRecord, Keeps, UncleanCause
from tidelog.core.replication.messages import LogFacts, SyncRequest, SyncResponse
from tidelog.sim.cluster.account import AccountEntry, ChannelAccount, Copy, end_of, entry_of, is_of_producer
from tidelog.sim.cluster.boat import BoatAccount
from tidelog.sim.metadata.model import ClusterBroken, MetadataModel
from tidelog.sim.seeds import WorldViolation
from tidelog.storage.store.channel_logs import LogState


class ClusterViolation(WorldViolation):
    """A replicated channel broke a promise."""

    world = "cluster"


class NatsClusterViolation(ClusterViolation):
    """... whose replicas speak over NATS."""

    world = "cluster --transport nats"


class ClusterModel(MetadataModel):
    def __init__(self, counters: Counter[str]) -> None:
        super().__init__(counters)
        self.channels: dict[int, ChannelAccount] = {}
        self.deleted: dict[int, ChannelAccount] = {}
        self.boats: dict[str, BoatAccount] = {}
        """The accounts of boats' channels, by name."""
        self.tolerates_short_leaders = False
        """A schedule made a short log lead on purpose, to see what the others do."""

    # --- the catalog -----------------------------------------------------------------------------------

    def _landed_change(self, applied: Applied) -> None:
        super()._landed_change(applied)
        for channel_id in applied.touched.channels:
            record = self.reference.channel(channel_id)
            known = self.channels.get(channel_id)
            if record is None:
                if known is not None:
                    self.deleted[channel_id] = self.channels.pop(channel_id)
            elif known is None:
                self.channels[channel_id] = ChannelAccount(record)
            else:
                self._follow(known, record)

    def _follow(self, channel: ChannelAccount, record: ChannelRecord) -> None:
        before, counters = channel.record, self.counters
        names, were = set(record.isr_nodes), set(before.isr_nodes)
        counters["isr_shrink"] += bool(were - names)
        counters["isr_expand"] += bool(names - were)
        counters["channel_election"] += record.leader_epoch > before.leader_epoch
        if len(record.unclean) > len(before.unclean):
            counters["by_reports"] += record.unclean[-1].cause is UncleanCause.REPORTS
            if record.unclean[-1].cause is UncleanCause.REPORTS:
                self._check_reports(channel, record.leader)
            if channel.name in self.boats:
                self.boats[channel.name].is_lossy = True
        plain = record.isr == before.isr and record.leader_epoch == before.leader_epoch
        if plain and (record.config, record.replicas, record.paused, record.readonly) == (
            before.config,
            before.replicas,
            before.paused,
            before.readonly,
        ):
            counters["epoch_raised"] += 1
        pinned = record.config.leader_pinned
        if pinned is not None and record.leader == pinned != before.leader and before.leader is not None:
            counters["handed_back"] += self.reference.has_live_leader(before)
        channel.left |= set(before.replicas) - set(record.replicas)
        channel.note(record)
        if record.leader_epoch == before.leader_epoch and record.leader_epoch == max(channel.leaders, default=0):
            for member in record.isr:
                known = before.member(member.node)
                if known is None or known.incarnation != member.incarnation:
                    self._check_joined(channel, member.node)

    def _check_reports(self, channel: ChannelAccount, leader: str | None) -> None:
        """1: of the holders that reported the longest leads, so nothing is lost that one of them still has whole."""
        elected = channel.copies.get(leader or "")
        for member in (*channel.record.isr, *channel.record.eligible):
            copy = channel.copies.get(member.node)
            if copy is None or copy.lossy or copy.damaged or copy.unsure or copy.held_end < channel.end:
                continue
            if elected is None or elected.end < channel.end:
                raise ClusterBroken(f"1: {leader} is elected by reports; {member.node} holds {channel.name} whole")

    def _check_joined(self, channel: ChannelAccount, node: str) -> None:
        """5: every member of the ISR holds everything that is committed from now on."""
        copy = channel.copies.get(node)
        held = 0 if copy is None else copy.held_end
        if channel.in_doubt or (copy is not None and copy.damaged):
            return
        if held < channel.end and copy is not None and copy.lossy:
            return  # it died since it was proposed, and the catalog will hear of that when it registers
        if held < channel.end:
            raise ClusterBroken(f"5: {node} joins the ISR of {channel.name} and holds {held} of {channel.end}")
        if copy is not None:
            copy.lossy = False
            if channel.entries and channel.end > copy.start:
                self._compare(node, channel, copy, channel.entries[-1], "joins the ISR of")

    # --- logs --------------------------------------------------------------------------------------------

    def copy_of(self, channel: ChannelAccount, node: str) -> Copy:
        copy = channel.copies.get(node)
        if copy is None:
            copy = channel.copies[node] = Copy()
        return copy

    def ordered(self, node: str, channel_id: int, blocks: Iterable[Block]) -> None:
        """2: blocks on their way to a log."""
        channel = self.channels.get(channel_id)
        if channel is None:
            return
        copy = self.copy_of(channel, node)
        boat = self.boats.get(channel.name)
        for block in blocks:
            self.checks += 1
            if boat is not None:
                boat.ordered(block)
            entry = entry_of(block)
            if entry.base != copy.end:
                raise ClusterBroken(f"2: {node} appends at {entry.base} to {channel.name}, which ends at {copy.end}")
            key = entry.epoch, entry.base
            if channel.stamped.setdefault(key, entry.head) != entry.head:
                raise ClusterBroken(
                    f"2: {node} has another block at {entry.base} of epoch {entry.epoch} of {channel.name}"
                )
            if copy.entries and copy.entries[-1].epoch > entry.epoch:
                raise ClusterBroken(
                    f"2: {node} appends epoch {entry.epoch} after {copy.entries[-1].epoch} to {channel.name}"
                )
            copy.entries.append(entry)
            if entry.maker.kind == BlockKind.CONTROL and key not in channel.snapshots:
                records = decode_control(entry.maker, block.raw_body())
                if any(isinstance(record, ChannelSnapshot) for record in records):
                    channel.snapshots[key] = entry.base

    def held(self, node: str, channel_id: int, held_end: int, durable_end: int) -> None:
        channel = self.channels.get(channel_id)
        if channel is not None:
            copy = self.copy_of(channel, node)
            copy.held_end = min(held_end, copy.end)
            copy.durable_end = min(durable_end, copy.end)

    def opened(
        self, node: str, channel_id: int, state: LogState, entries: list[AccountEntry], *, tampered: bool
    ) -> None:
        """A log was opened: what it holds is what was there, but for what its policy lets a crash take."""
        channel = self.channels.get(channel_id)
        if channel is None:
            return
        known = channel.copies.get(node)
        copy = Copy()
        copy.entries = entries
        # (What rots in a log is found when it is read: by a reader, by the scrubber, or here.)
        whole = all(one.end == next_one.base for one, next_one in pairwise(entries))
        copy.start, copy.opened_end = state.log_start, state.log_end
        rotten_end = (entries[-1].end if entries else state.log_start) < state.log_end
        copy.damaged = bool(state.damaged) or not whole or rotten_end
        self._note_ends(channel, copy, state)
        channel.copies[node] = copy
        if known is None:
            return
        self.checks += 1
        if known.unsure or tampered or copy.damaged:
            copy.lossy = known.lossy or state.log_end < known.held_end or copy.damaged or tampered
            return
        for entry in entries:
            place = known.place(entry.base)
            if entry.base >= known.start and (place >= len(known.entries) or known.entries[place].head != entry.head):
                raise ClusterBroken(
                    f"2: {node} finds a block at {entry.base} of {channel.name} that was never left there"
                )
        copy.lossy = known.lossy
        if state.log_end < known.durable_end and channel.record.config.persistent:
            raise ClusterBroken(
                f"5: {node} held {channel.name} up to {known.durable_end}, synced, and finds {state.log_end}"
            )
        if state.log_end < known.held_end:
            copy.lossy = True
            self.counters["lost_by_policy"] += 1

    def truncated(self, node: str, channel_id: int, state: LogState) -> None:
        channel = self.channels.get(channel_id)
        if channel is None:
            return
        copy = self.copy_of(channel, node)
        member = channel.record.member(node) or channel.record.eligible_member(node)
        trusted = member is not None and node not in self.reference.doubtful(channel.channel_id)
        cuts = state.log_end < min(channel.end, copy.held_end)
        if copy.damaged:
            cuts = False  # what is lost already is thrown away, to be fetched again
            copy.committed_end = min(copy.committed_end, state.log_end)
            copy.damaged = bool(state.damaged)
        if cuts and trusted and not channel.unclean_epoch and not copy.lossy:
            problem = f"{node} is in sync and cuts {channel.name} at {state.log_end}, {channel.end} is committed"
            raise ClusterBroken(f"1: {problem}")
        if state.log_end < copy.committed_end and not channel.unclean_epoch:
            problem = f"{node} cuts {channel.name} at {state.log_end}, below {copy.committed_end}, which is committed"
            raise ClusterBroken(f"1: {problem}")
        for entry in copy.entries[copy.place(state.log_end) :]:
            # What was refused here, and never came to anybody else, never was: its place may be given to another.
            others = (other for name, other in channel.copies.items() if name != node)
            if not any(entry in other.entries for other in others):
                channel.stamped.pop((entry.epoch, entry.base), None)
        copy.cut(state.log_end)
        if copy.end != state.log_end and not copy.damaged:
            raise ClusterBroken(f"2: {node} cut {channel.name} at {state.log_end}, the model at {copy.end}")
        self._note_ends(channel, copy, state)

    @staticmethod
    def _note_ends(channel: ChannelAccount, copy: Copy, state: LogState) -> None:
        synced = channel.record.config.keeps is Keeps.SYNCED
        copy.held_end = state.durable_end if synced else state.log_end
        copy.durable_end = state.durable_end

    def reset(self, node: str, channel_id: int, state: LogState) -> None:
        channel = self.channels.get(channel_id)
        if channel is not None:
            copy = self.copy_of(channel, node)
            member = channel.record.member(node)
            copy.entries.clear()
            copy.start = copy.held_end = copy.durable_end = copy.committed_end = copy.opened_end = state.log_start
            copy.damaged = False
            if member is not None and not copy.lossy and not channel.unclean_epoch and state.log_start < channel.end:
                copy.lossy = True
            self.counters["reset"] += 1

    def swept(self, node: str, channel_id: int, state: LogState) -> None:
        channel = self.channels.get(channel_id)
        if channel is None:
            return
        copy = self.copy_of(channel, node)
        if not channel.in_doubt and state.log_start > channel.end:
            raise ClusterBroken(
                f"1: retention at {node} cuts {channel.name} at {state.log_start}, {channel.end} is committed"
            )
        self._check_fold(node, channel, copy, state.log_start)
        copy.trim(state.log_start)
        self.counters["swept"] += 1

    def _check_fold(self, node: str, channel: ChannelAccount, copy: Copy, start: int) -> None:
        """F3: what was known of producers below the new start is in a committed snapshot above it."""
        below = copy.entries[: copy.place(start)]
        if not any(is_of_producer(entry.maker) or (entry.epoch, entry.base) in channel.snapshots for entry in below):
            return
        kept = copy.entries[copy.place(start) :]
        if channel.in_doubt or any(
            (entry.epoch, entry.base) in channel.snapshots for entry in kept if entry.end <= channel.end
        ):
            return
        raise ClusterBroken(
            f"F3: retention at {node} cuts {channel.name} at {start}, past what is known of its producers"
        )

    def repaired(self, node: str, channel_id: int, entries: list[AccountEntry], state: LogState) -> None:
        """10: what was put in the place of rotten blocks is what was committed there."""
        channel = self.channels.get(channel_id)
        if channel is None:
            return
        copy = self.copy_of(channel, node)
        copy.entries, copy.damaged = entries, bool(state.damaged)
        for entry in entries:
            known = channel.at(entry.base)
            if (
                known is not None
                and known.base == entry.base
                and known.head != entry.head
                and entry.end <= copy.committed_end
            ):
                raise ClusterBroken(f"10: {node} repairs {channel.name} with another block at {entry.base}")

    def deleted_log(self, node: str, channel_id: int) -> None:
        """RRE2: only what the catalog has deleted, or placed elsewhere, is thrown away."""
        channel = self.channels.get(channel_id)
        if channel is None:
            return
        # (Who was no replica for a while may do it late; not after it was in sync again.)
        wanted = node not in channel.left or channel.record.member(node) is not None
        if wanted and node in channel.record.replicas:
            raise ClusterBroken(f"RRE2: {node} deletes its log of {channel.name}, of which it is a replica")
        self.gone(node, channel_id)

    def gone(self, node: str, channel_id: int) -> None:
        """The log was deleted, or was in memory and its process let it go."""
        channel = self.channels.get(channel_id)
        if channel is not None:
            copy = channel.copies.get(node)
            if copy is not None:
                copy.unsure = copy.lossy = True

    # --- replicas after an event -------------------------------------------------------------------------

    def moved(self, node: str, replica: ChannelReplica) -> None:
        channel = self.channels.get(replica.channel_id)
        if channel is None:
            return
        leading, following = channel.leading_at(node, replica), replica.following
        if leading is not None:
            self.checks += 1
            if leading.epoch not in channel.leaders:
                self._begins(node, channel, leading)
            elif channel.leaders[leading.epoch] is not leading:
                raise ClusterBroken(f"3: {channel.name} is led twice in epoch {leading.epoch}, by {node} now")
            if not channel.is_void(leading.epoch):
                self._leads(node, channel, replica, leading)
        elif following is not None and not channel.is_void(following.epoch):
            self._follows(node, channel, replica)

    def _begins(self, node: str, channel: ChannelAccount, leading: Leading) -> None:
        """1, 3, 7."""
        epoch = leading.epoch
        channel.leaders[epoch] = leading
        elected = channel.leader_of.get(epoch)
        if elected is None or elected[0] != node:
            raise ClusterBroken(f"3: {node} leads {channel.name} in epoch {epoch}; the catalog elected {elected}")
        if channel.is_void(epoch):
            return
        copy = self.copy_of(channel, node)
        if channel.in_doubt:
            self._settle(channel, copy)
            return
        if not channel.entries or epoch < max(channel.leaders):
            return  # (who hears late of an election that is over already need not hold what came after it)
        if copy.end < channel.end and self.tolerates_short_leaders:
            return
        if copy.end < channel.end:
            problem = f"{node} leads {channel.name} in epoch {epoch} and holds {copy.end} of {channel.end}"
            raise ClusterBroken(f"1: {problem} committed records")
        for entry in channel.entries[bisect_right(channel.entries, copy.start, key=end_of) :]:
            self._compare(node, channel, copy, entry, "leads")

    def _compare(self, node: str, channel: ChannelAccount, copy: Copy, entry: AccountEntry, does: str) -> None:
        place = copy.place(entry.base)
        if place >= len(copy.entries) or copy.entries[place].head != entry.head:
            if copy.damaged:
                return
            problem = f"{node} {does} {channel.name} with another block at {entry.base} than the committed one"
            raise ClusterBroken(f"1: {problem} of epoch {entry.epoch}")

    def _settle(self, channel: ChannelAccount, copy: Copy) -> None:
        """The account after an election that may have lost records: what the new leader holds of it.

        A block that has rotted in its log, unread and so unnoticed, is not given up by that: it was committed, the log
        goes on behind it, and once it is read the shell repairs it from a node that holds it.
        """
        channel.settled_epoch = channel.unclean_epoch
        channel.losses += 1
        keep = bisect_right(channel.entries, copy.start, key=end_of)
        while keep < len(channel.entries):
            entry = channel.entries[keep]
            place = copy.place(entry.base)
            differs = place >= len(copy.entries) or copy.entries[place].head != entry.head
            if differs and not copy.has_rotted_at(entry):
                break
            keep += 1
        if keep < len(channel.entries):
            self.counters["records_lost"] += 1
        del channel.entries[keep:]
        channel.end = channel.entries[-1].end if channel.entries else 0
        channel.end = max(channel.end, min(copy.start, copy.end))
        channel.acks = {first: entry for first, entry in channel.acks.items() if entry.end <= channel.end}
        channel.seqs.clear()
        for entry in channel.entries:
            self._note_seqs(channel, entry, check=False)
        for other in channel.copies.values():
            other.committed_end = min(other.committed_end, channel.end)
        if channel.name in self.boats:
            self.boats[channel.name].cut(channel.entries)

    def _leads(self, node: str, channel: ChannelAccount, replica: ChannelReplica, leading: Leading) -> None:
        copy = self.copy_of(channel, node)
        end = replica.committed_end
        if self.tolerates_short_leaders:
            return
        if end > copy.committed_end:
            if end > channel.end:
                self._check_durable(node, channel, replica, end)
            self._commit_up_to(node, channel, copy, end)
            copy.committed_end = end
        if leading.serves and leading.epoch == max(channel.leaders) and end < channel.end:
            raise ClusterBroken(f"4: {node} serves {channel.name} up to {end}; {channel.end} was committed before")

    def _check_durable(self, node: str, channel: ChannelAccount, replica: ChannelReplica, end: int) -> None:
        """5."""
        self.checks += 1
        record, seen = channel.record, replica.record.channel_epoch
        if not any(channel.enough.get(epoch, False) for epoch in range(seen - 2, seen + 1)):
            # (Of the changes that it heard of in one go it may have committed before the last.)
            raise ClusterBroken(f"5: {node} commits {channel.name} with {len(replica.record.isr)} in sync")
        doubtful = self.reference.doubtful(channel.channel_id)
        members = {member.node for member in (*record.isr, *record.eligible)} | {node}
        for name in sorted(members):
            copy = channel.copies.get(name)
            if name != node and (name in doubtful or (copy is not None and (copy.lossy or copy.damaged))):
                continue
            if copy is None or copy.held_end < end:
                held = 0 if copy is None else copy.held_end
                raise ClusterBroken(f"5: {node} commits {channel.name} up to {end}; {name} holds {held}")
            if name == node:
                continue
            mine = channel.copies[node]
            for entry in mine.entries[mine.place(mine.committed_end) : mine.place(end - 1) + 1]:
                place = copy.place(entry.base)
                if entry.end > copy.start and copy.entries[place].head != entry.head:
                    raise ClusterBroken(
                        f"5: {node} commits {channel.name} at {entry.base}; {name} holds another block there"
                    )

    def _commit_up_to(self, node: str, channel: ChannelAccount, copy: Copy, end: int) -> None:
        """What this leader says is committed is what others said, and goes on from there."""
        for entry in self._with_what_rotted(channel, copy):
            if entry.base >= end:
                break
            if entry.end > end:
                raise ClusterBroken(f"4: {node} commits {channel.name} up to {end}, inside a block")
            if entry.base < channel.end:
                known = channel.at(entry.base)
                if known is not None and known.head != entry.head:
                    raise ClusterBroken(f"1: {node} commits another block at {entry.base} of {channel.name}")
                continue
            if channel.entries and entry.base != channel.end:
                raise ClusterBroken(f"2: {channel.name} is committed up to {channel.end} and goes on at {entry.base}")
            self._note_seqs(channel, entry, check=True)
            channel.entries.append(entry)
            channel.end = entry.end
            self.counters["committed_blocks"] += 1
            if channel.name in self.boats:
                self.boats[channel.name].committed(entry)

    def _with_what_rotted(self, channel: ChannelAccount, copy: Copy) -> list[AccountEntry]:
        """What a leader has above its committed end. A block that rotted there, and that nobody has read since, is
        taken from a node that holds it: that node makes it durable."""
        own = copy.entries[copy.place(copy.committed_end) :]
        if not copy.damaged:
            return own
        others = [entry for other in channel.copies.values() if other is not copy for entry in other.entries]
        lost = {entry.base: entry for entry in others if entry.base >= channel.end and copy.has_rotted_at(entry)}
        return sorted([*own, *lost.values()])

    def _note_seqs(self, channel: ChannelAccount, entry: AccountEntry, *, check: bool) -> None:
        """6."""
        maker = entry.maker
        if not is_of_producer(maker):
            return
        last = channel.seqs.get(maker.producer, 0)
        if check and not channel.losses and maker.base_seq != last + 1:
            what = "again" if maker.base_seq <= last else "too early"
            raise ClusterBroken(f"6: seq {maker.base_seq} of a producer of {channel.name} comes {what}, after {last}")
        channel.seqs[maker.producer] = maker.seqs.stop - 1

    def _follows(self, node: str, channel: ChannelAccount, replica: ChannelReplica) -> None:
        copy = channel.copies.get(node)
        if copy is None or channel.in_doubt or not replica.serves:
            return
        end = replica.committed_end
        if end > copy.committed_end:
            self.checks += 1
            if end > channel.end or end > copy.held_end:
                problem = f"{node} says {channel.name} is committed up to {end}; it holds {copy.held_end}"
                raise ClusterBroken(f"4: {problem} and {channel.end} is")
            for entry in copy.entries[copy.place(copy.committed_end) :]:
                if entry.base >= end:
                    break
                known = channel.at(entry.base)
                if known is not None and known.head != entry.head:
                    raise ClusterBroken(f"4: {node} exposes another block at {entry.base} of {channel.name}")
            copy.committed_end = end

    # --- messages as they leave ----------------------------------------------------------------------------

    def check_channel_message(self, node: str, message: Any) -> None:
        """5: what is acknowledged is durable. 4: what is told as committed is."""
        if isinstance(message, SyncRequest | LogFacts):
            channel = self.channels.get(message.channel_id)
            if channel is not None:
                self.checks += 1
                copy = channel.copies.get(node)
                told = message.held_end if isinstance(message, SyncRequest) else message.log_end
                held = 0 if copy is None else max(copy.held_end, copy.start)
                if told > held:
                    raise ClusterBroken(f"5: {node} says that it holds {channel.name} up to {told}; it holds {held}")
        elif isinstance(message, SyncResponse):
            channel = self.channels.get(message.channel_id)
            if channel is not None and not channel.is_void(message.leader_epoch) and not channel.in_doubt:
                self.checks += 1
                if message.committed_end > channel.end:
                    raise ClusterBroken(f"4: {node} tells {message.committed_end} of {channel.name}; {channel.end} is")

    # --- clients -------------------------------------------------------------------------------------------

    def acked(self, node: str, channel_id: int, first: int, maker_bytes: bytes, count: int, epoch: int) -> None:
        """1, 5: a client was promised that its block is committed at this offset."""
        channel = self.channels.get(channel_id)
        if channel is None or channel.is_void(epoch) or channel.in_doubt:
            return
        self.checks += 1
        entry = channel.at(first)
        if entry is None or entry.base != first or entry.end != first + count:
            raise ClusterBroken(f"1: {node} acks a block at {first} of {channel.name}; {channel.end} is committed")
        if entry.head[: len(maker_bytes)] != maker_bytes:
            raise ClusterBroken(f"6: {node} acks a block at {first} of {channel.name}, where another one is")
        channel.acks[first] = entry

    def held_by_leader(self, node: str, channel_id: int, end: int) -> None:
        """A client was told that its block is durable at the leader."""
        channel = self.channels.get(channel_id)
        if channel is not None:
            copy = channel.copies.get(node)
            if copy is None or copy.held_end < end:
                raise ClusterBroken(f"5: {node} acks {end} of {channel.name} as its leader and does not hold it")

    def check_served(
        self, node: str, channel_id: int, entries: list[AccountEntry], committed_end: int, epoch: int
    ) -> bool:
        """4, 10: a reader got these blocks. False if nothing can be said: an election may lose records just now."""
        channel = self.channels.get(channel_id)
        if channel is None or channel.is_void(epoch) or channel.in_doubt:
            return False
        self.checks += 1
        if committed_end > channel.end:
            raise ClusterBroken(f"4: {node} serves {channel.name} up to {committed_end}; {channel.end} is committed")
        for entry in entries:
            known = channel.at(entry.base)
            if known is not None and known.head != entry.head:
                raise ClusterBroken(
                    f"10: {node} serves another block at {entry.base} of {channel.name} than was committed"
                )
        return True

    # --- the end -------------------------------------------------------------------------------------------

    def check_logs(self, channel: ChannelAccount, logs: dict[str, list[AccountEntry]], tampered: set[str]) -> None:
        """1, 2: every replica holds the committed records, byte for byte, and all that was acked is there, once.

        Where bits were flipped records may be missing: they are found when they are read, and repaired by the shell.
        """
        self.checks += 1
        leader = channel.record.leader
        for node, entries in logs.items():
            if node in tampered:
                for entry in entries:
                    known = channel.at(entry.base)
                    if known is not None and known.head != entry.head:
                        raise ClusterBroken(f"10: {channel.name} at {node} holds another block at {entry.base}")
                continue
            start = entries[0].base if entries else channel.end
            first = bisect_left(channel.entries, start, key=lambda entry: entry.base)
            held = [entry.head for entry in entries if entry.end <= channel.end]
            if held != [entry.head for entry in channel.entries[first:]]:
                raise ClusterBroken(f"2: the log of {channel.name} at {node} is not what was committed from {start} on")
            if start and not channel.retained and not channel.losses:
                raise ClusterBroken(f"1: {channel.name} begins at {start} at {node} though nothing may be removed")
            if node == leader:
                places = {entry.base: entry for entry in entries}
                for base, entry in channel.acks.items():
                    if base >= start and places.get(base) != entry:
                        raise ClusterBroken(f"1: what was acked at {base} of {channel.name} is not there")
