"""A node's core: founding or joining a cluster, the metadata group, registration, sessions, heartbeats, channels.

No threads, no sockets, no clock: the shell feeds it messages and the time and carries out what `poll` returns, and the
simulator runs the same code. Files are written directly only when a node is created or registers; the group's regular
writes leave as `Output.write`, for the shell to write behind a queue.

What a caller must keep: pass messages in with the node that the link has proved to be the sender; call `wake` when
`wake_at_ms` says so; `poll` until None after every input; carry out writes and saves in the order they came.

NC1  A node whose metadata is gone or damaged counts as a node with a new disk: it sets the old files aside, deletes
     nothing, gives no vote, and gets the metadata from its peers.
NC2  A node registers with a higher incarnation whenever it starts or was fenced, before it takes part in any decision.
NC3  The same holds for a node whose metadata is an older copy, if its peers remember more. It takes no part in the
     group before they were asked, or could not be reached.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from tidelog.cluster.metadata.member import MetadataMember, Result
from tidelog.cluster.metadata.member_controller import MemberController
from tidelog.cluster.metadata.standing import MemberStanding
from tidelog.cluster.node.channels import NodeChannels, WatermarkOf
from tidelog.cluster.node.core_parts import NodeFacts as NodeFacts
from tidelog.cluster.node.core_parts import NodeOptions as NodeOptions
from tidelog.cluster.node.core_parts import NodeOutput as NodeOutput
from tidelog.cluster.node.node_file import NodeFile
from tidelog.cluster.node.registration import Registration
from tidelog.cluster.replication.replicas import ReplicasOutput
from tidelog.core.catalog import (
    AdmitNode,
    Applied,
    Batch,
    Catalog,
    Change,
    FenceNode,
    NodeRecord,
    NodeState,
    RegisterNode,
    RemoveNode,
)
from tidelog.core.founding import Decision, Found, Founding, Join, WaitForVoters
from tidelog.core.liveness import (
    Heartbeat,
    PairHeartbeats,
    ProximityGraph,
    RenewSession,
    SessionHolder,
    SessionRefused,
    SessionRenewed,
)
from tidelog.core.membership import member_name, node_of
from tidelog.core.node_messages import ForMember, Here, Judged, NodeMessage, Register, RegisterRefused, Standing, Who
from tidelog.core.raft import HardState, Members, Snapshot, SnapshotHead
from tidelog.core.replication.messages import SyncRequest, SyncResponse
from tidelog.errors import InvalidConfig, MetadataDamaged, NotLeader
from tidelog.storage.disk import Disk
from tidelog.storage.raft.files import StoredIdentity
from tidelog.storage.raft.opening import create_raft_storage, open_raft_storage, set_aside
from tidelog.storage.raft.storage import RaftStorage

METADATA_FOLDER: Final = "metadata"
QUARANTINE_FOLDER: Final = "quarantine"
SEEK_MS: Final = 300
"""The interval at which a node without metadata asks its peers, and an unregistered one registers again."""
LINES_MAX: Final = 1_000
CONTROLLER_MS: Final = 5


class NodeCore:
    def __init__(
        self,
        *,
        node: str,
        peers: tuple[str, ...],
        facts: NodeFacts,
        disk: Disk,
        folder: str,
        options: NodeOptions,
        rng: Random,
        now_ms: int,
        now_us: Callable[[], int],
        watermark_of: WatermarkOf = lambda _: None,
    ) -> None:
        """`peers` are all configured nodes; `now_us` is the wall clock, for what is recorded, never for deciding."""
        self.node = node
        self.options = options
        self._peers = tuple(sorted({*peers, node}))
        self._disk = disk
        self._folder = folder
        self._rng = rng
        self._now_us = now_us
        self._messages: list[tuple[str, NodeMessage]] = []
        self._lines, self._results = list[str](), list[Result]()
        self.file = NodeFile(disk, folder, node=node)
        self.registration = Registration(node=node, process_id=rng.randbytes(8).hex(), file=self.file, facts=facts)
        self.storage: RaftStorage | None = None
        self.member: MetadataMember | None = None
        self.damage: str | None = None
        """Why the metadata was set aside when this process started."""
        self.decision: Decision = WaitForVoters("starting")
        self._seek_at_ms = now_ms
        self._leader_hint: str | None = None
        self._restores_seen = 0
        self._links: set[str] = set()
        """Peers with a link, also those that the catalog does not know yet."""
        self._token = 0
        self._controller_due_ms = now_ms
        liveness = options.liveness
        self.member_controller = MemberController(
            node=node, peers=self._peers, liveness=liveness, voters_max=options.voters_max, say=self._say
        )
        self.heartbeats = PairHeartbeats(node=node, incarnation=0, config=liveness, now_ms=now_ms)
        self.proximity = ProximityGraph(config=liveness)
        self.holder = SessionHolder(node=node, incarnation=0, config=liveness, now_ms=now_ms)
        self.channels = NodeChannels(
            node=node,
            options=options.replication,
            liveness=liveness,
            heartbeats=self.heartbeats,
            proximity=self.proximity,
            wall_us=now_us,
            say=self._say,
            watermark_of=watermark_of,
            now_ms=now_ms,
        )
        self._founding = Founding(node=node, peers=self._peers, belonged_to=bytes.fromhex(self.file.state.cluster))
        self.standing = MemberStanding(process=self.registration.process_id)
        self._doubt_said = ""
        self._open(now_ms)

    # --- where this node stands ------------------------------------------------------------------------

    @property
    def cluster(self) -> bytes:
        """Empty before the node belongs to a cluster."""
        return b"" if self.storage is None else self.storage.identity.cluster

    @property
    def catalog(self) -> Catalog | None:
        return None if self.member is None else self.member.catalog

    @property
    def is_in_group(self) -> bool:
        """Whether this node's disk is a member of the metadata group, as far as it knows."""
        return self.member is not None and self.member.member in self.member.raft.members

    @property
    def _takes_part(self) -> bool:
        return self.member is not None and not self.standing.on_probation

    @property
    def leader(self) -> str | None:
        """The node that leads the metadata, as far as this one knows."""
        if self.member is None or not self.is_in_group:
            return self._leader_hint  # what others reported; a member of the group knows better
        leader = self.member.raft.leader
        return None if leader is None else node_of(leader)

    @property
    def is_leader(self) -> bool:
        return self.member is not None and self.member.is_leader

    @property
    def incarnation(self) -> int:
        """0 while this node is not registered."""
        return self.registration.incarnation

    @property
    def is_registered(self) -> bool:
        return self.registration.is_valid

    def addresses(self) -> dict[str, str]:
        """The link address of every other node that the catalog knows."""
        nodes = () if self.catalog is None else self.catalog.nodes()
        known = {one.node: dict(one.addresses).get("link") for one in nodes if one.state is not NodeState.REMOVED}
        return {node: address for node, address in known.items() if address and node != self.node}

    # --- birth -------------------------------------------------------------------------------------------

    def _open(self, now_ms: int) -> None:
        folder = f"{self._folder}/{METADATA_FOLDER}"
        try:
            storage = open_raft_storage(self._disk, folder, now_us=self._now_us())
        except MetadataDamaged as error:
            self._set_aside(str(error))
            storage = None
        if storage is not None:
            if storage.identity.node != self.node:
                storage.close()
                problem = f"the metadata in {folder} belongs to node {storage.identity.node}"
                raise InvalidConfig(section="node", problems=(problem,))
            self._start(storage, now_ms, ask=self._peers)

    def _set_aside(self, reason: str) -> None:
        """Move the metadata aside (NC1). The files are kept for inspection."""
        folder = f"{self._folder}/{METADATA_FOLDER}"
        moved_to = set_aside(self._disk, folder, to=f"{self._folder}/{QUARANTINE_FOLDER}")
        self.damage = f"{reason} (set aside in {moved_to})"
        self._say("metadata set aside", reason=reason, moved_to=moved_to)

    def _wake_standing(self, now_ms: int) -> None:
        """Report this disk's state to the others; give its folder up if they remember more (NC3)."""
        storage, standing = self.storage, self.standing
        if self.member is None or storage is None:
            return
        if not standing.problem:
            self._messages += standing.wake(self.member, storage, now_ms)
            if standing.doubt and standing.doubt != self._doubt_said:
                self._doubt_said = standing.doubt
                self._say("metadata may be an older copy", reason=standing.doubt)
            return
        error = storage.give_up(standing.problem)
        storage.close()
        self.storage = self.member = None
        self._set_aside(str(error))
        self._seek_at_ms = now_ms

    def _start(self, storage: RaftStorage, now_ms: int, *, ask: tuple[str, ...] = ()) -> None:
        identity = storage.identity
        self.file.belongs_to(identity.cluster)
        self.storage = storage
        self.member = MetadataMember(
            member=member_name(identity.node, identity.disk),
            options=self.options.metadata,
            hard_state=storage.hard_state,
            snapshot=storage.snapshot,
            entries=storage.entries,
            random_fraction=self._rng.random,
            now_ms=now_ms,
        )
        self.standing.begin(self.member, storage.entries, now_ms, peers=ask)

    def _be_born(self, cluster: bytes, snapshot: Snapshot, hard_state: HardState, disk_id: str, now_ms: int) -> None:
        storage = create_raft_storage(
            self._disk,
            f"{self._folder}/{METADATA_FOLDER}",
            identity=StoredIdentity(cluster=cluster, node=self.node, disk=disk_id),
            snapshot=snapshot,
            hard_state=hard_state,
            now_us=self._now_us(),
        )
        self._start(storage, now_ms)

    def _seek(self, now_ms: int) -> None:
        """Without metadata: ask around, and found or join once it is clear which (O1, O2)."""
        self._messages += [(peer, Who()) for peer in self._founding.peers]
        self.decision = self._founding.decide(now_ms)
        disk_id = self._rng.randbytes(8).hex()
        match self.decision:
            case Found():
                cluster = self._rng.randbytes(16)
                founder = Members(voters=(member_name(self.node, disk_id),))
                snapshot = Snapshot(SnapshotHead(1, 1, founder), Catalog().snapshot())
                self._be_born(cluster, snapshot, HardState(1, None), disk_id, now_ms)
                self._say("cluster founded", cluster=cluster.hex())
            case Join(cluster=cluster):
                self._be_born(cluster, Snapshot(SnapshotHead()), HardState(), disk_id, now_ms)
                self._say("joining", cluster=cluster.hex())
            case WaitForVoters():
                pass

    # --- inputs --------------------------------------------------------------------------------------------

    def receive(self, peer: str, message: NodeMessage, now_ms: int, now_us: int | None = None) -> None:
        """A message from a node; `now_us` is the steady clock, finer, for round trips."""
        if type(message) is SyncRequest or type(message) is SyncResponse:
            self.channels.replicas.receive(peer, message, now_ms)  # by far the most frequent
            return
        if self.member is None:
            self._founding.heard(peer)
        match message:
            case ForMember():
                member = self.member
                if member is not None and message.target == member.member and node_of(message.sender) == peer:
                    self.standing.memory.heard(message.sender, message.message)
                    if not self.standing.on_probation:
                        member.receive(message.sender, message.message, now_ms)
            case Standing():
                record = None if self.catalog is None else self.catalog.node(peer)
                answer = self.standing.judge(message, self.member, record) if node_of(message.member) == peer else None
                if answer is not None:
                    self._messages.append((peer, answer))
            case Judged():
                self.standing.judged(peer, message, self.member, now_ms)
            case Heartbeat():
                fresh = self.heartbeats.accepts(peer, message)
                self._messages += self.heartbeats.receive(peer, message, now_ms, now_us)
                if fresh:
                    self.proximity.report(peer, message.report, now_ms)
            case RenewSession():
                if message.node == peer:
                    self._answer(peer, self.member_controller.renew(self.member, message, now_ms))
            case SessionRenewed() | SessionRefused():
                self.holder.receive(message)
            case Who():
                # Hearsay is not relayed: two waiting nodes would keep reporting a leader that is gone to each other.
                leader = self.leader if self.is_in_group else None
                self._messages.append((peer, Here(cluster=self.cluster, leader=leader)))
            case Here():
                self._founding.answered(peer, message.cluster, now_ms)
                if message.cluster == self.cluster or self.member is None:
                    self._note_leader(peer, message.leader, now_ms)
            case Register():
                if message.change.node == peer:
                    self._answer(peer, self.member_controller.register(self.member, message.change))
            case RegisterRefused():
                self.registration.refused(message)
            case _:
                self.channels.receive(peer, message, now_ms, catalog=self._led_catalog, propose=self._propose_own)

    @property
    def _led_catalog(self) -> Catalog | None:
        """The catalog, where this node leads it."""
        return self.member.catalog if self.member is not None and self.member.is_leader else None

    def _propose_own(self, change: Change) -> None:
        """A change without a waiting caller: the catalog itself shows the outcome."""
        assert self.member is not None
        self.member_controller.propose_unwatched(self.member, change)

    def _note_leader(self, peer: str, leader: str | None, now_ms: int) -> None:
        """A peer reports the leader. A peer that knows none only withdraws its own report."""
        if leader is not None:
            if self._leader_hint is None:
                self._seek_at_ms = now_ms  # there is a leader to register with
            self._leader_hint = leader
        elif peer == self._leader_hint:
            self._leader_hint = None

    def link_up(self, peer: str, now_ms: int) -> None:
        self._links.add(peer)
        self.heartbeats.peer_up(peer, now_ms)
        self.channels.replicas.link_up(peer, now_ms)
        self.standing.link_up(now_ms)
        if self.member is None:
            self._seek_at_ms = now_ms

    def link_down(self, peer: str, now_ms: int) -> None:
        self._links.discard(peer)
        self.heartbeats.peer_down(peer, now_ms)

    def wake(self, now_ms: int, now_us: int | None = None) -> None:
        self._wake_standing(now_ms)
        if self._takes_part and self.member is not None and now_ms >= self.member.wake_at_ms():
            self.member.tick(now_ms)
        if now_ms >= self._seek_at_ms:
            self._seek_at_ms = now_ms + SEEK_MS
            if self.member is None:
                self._seek(now_ms)
            if self._takes_part:
                self._register(now_ms)
        if self.registration.is_valid:
            self._wake_liveness(now_ms, now_us)
        if self.member is not None:
            self._wake_controller(self.member, now_ms)
        self.channels.replicas.wake(now_ms)

    def _wake_liveness(self, now_ms: int, now_us: int | None) -> None:
        """Channels wake a node many times between two heartbeats; most of those cost nothing here."""
        if (beats_ms := self.heartbeats.wake_at_ms()) is None or now_ms >= beats_ms:
            for peer, beat in self.heartbeats.wake(now_ms, now_us):
                self._messages.append((peer, beat))
            self.proximity.report(self.node, self.heartbeats.report(now_ms), now_ms)
        self.holder.set_leader(self.leader, now_ms)
        if (renewal_ms := self.holder.wake_at_ms()) is None or now_ms < renewal_ms:
            return
        for peer, renewal in self.holder.wake(now_ms):
            if peer == self.node:
                self._answer(peer, self.member_controller.renew(self.member, renewal, now_ms))
            else:
                self._messages.append((peer, renewal))

    def _wake_controller(self, member: MetadataMember, now_ms: int) -> None:
        """The metadata leader's work, every few milliseconds at most; at once when leadership begins or ends."""
        if now_ms < self._controller_due_ms and member.is_leader == self.member_controller.is_leading:
            return
        self._controller_due_ms = now_ms + CONTROLLER_MS
        self.member_controller.lead(member, self.cluster, now_ms)
        led = self._led_catalog if self.member_controller.is_leading and self.options.serves_channels else None
        self._messages += self.channels.tend(led, self._propose_own, now_ms)

    def wake_at_ms(self) -> int:
        return min(self.rounds_at_ms(), self.channels.replicas.agenda_at_ms())

    def rounds_at_ms(self) -> int:
        """Like `wake_at_ms`, without the times of single channels: for those `Replicas.wake_agenda` is enough."""
        rounds_ms = self.channels.rounds_at_ms(tend_earliest_ms=self._controller_due_ms)
        moments = [self._seek_at_ms, rounds_ms, self.member_controller.sessions.wake_at_ms()]
        if self.member is not None:
            moments.append(self.standing.wake_at_ms())
            moments += [self.member.wake_at_ms()] if self._takes_part else []
        if self.registration.is_valid:
            moments += (self.heartbeats.wake_at_ms(), self.holder.wake_at_ms())
        return min(at for at in moments if at is not None)

    def _answer(self, peer: str, answer: SessionRenewed | SessionRefused | RegisterRefused | None) -> None:
        """To another node, or to this one."""
        if answer is None:
            return
        if peer != self.node:
            self._messages.append((peer, answer))
        elif isinstance(answer, RegisterRefused):
            self.registration.refused(answer)
        else:
            self.holder.receive(answer)

    def new_token(self) -> int:
        """A token for the caller's own `propose`, `read` and `wait_applied`."""
        self._token += 1
        return self._token

    def propose(self, change: Change, token: int) -> None:
        if self.member is None:
            raise NotLeader(leader=self.leader)
        self.member.propose(change, token)

    def written(self, number: int) -> None:
        assert self.member is not None
        self.member.written(number)

    def stop_cleanly(self) -> None:
        """Everything is written; record that for the next start (R5)."""
        if self.storage is not None:
            self.storage.close()
        self.registration.stopped_cleanly()

    # --- outputs -------------------------------------------------------------------------------------------

    def poll(self, now_ms: int) -> NodeOutput | None:
        output = self.member.poll() if self._takes_part and self.member is not None else None
        if output is not None:
            assert self.member is not None
            sender = self.member.member
            self._messages += [(node_of(to), ForMember(sender, to, message)) for to, message in output.messages]
            for result in output.results:
                if not self.member_controller.owns(result):
                    self._results.append(result)
                elif (refused := self.member_controller.settle(self.member, result, now_ms)) is not None:
                    self._answer(*refused)
            for applied in output.applied:
                self._on_applied(applied, now_ms)
            self._follow_channels(output.applied, now_ms)
        if self.member is not None:
            restored = self.member.restores != self._restores_seen
            if restored:
                self._restores_seen = self.member.restores
                self._follow_nodes(now_ms)
                self._follow_channels(None, now_ms)
            if restored or self.holder.is_fenced or (output is not None and output.applied):
                self._note_registration(now_ms)
        replicas = self._poll_replicas(now_ms)
        if not (self._messages or output or self._lines or self._results or replicas):
            return None
        found = NodeOutput(
            messages=tuple(self._messages),
            member=output,
            results=tuple(self._results),
            lines=tuple(self._lines),
            replicas=replicas,
        )
        self._messages, self._lines, self._results = [], [], []
        return found

    def _poll_replicas(self, now_ms: int) -> ReplicasOutput | None:
        """The output of the channels; messages for the metadata leader go to it, or are dropped."""
        output = self.channels.replicas.poll(now_ms)
        self.channels.follow_changed_beats()
        if output is None:
            return None
        self._messages += output.messages
        self._lines += output.lines[: max(0, LINES_MAX - len(self._lines))]
        for message in output.to_metadata:
            if self.leader == self.node:
                self.receive(self.node, message, now_ms)
            elif self.leader is not None:
                self._messages.append((self.leader, message))
        return output

    def _follow_channels(self, applied: tuple[Applied, ...] | None, now_ms: int) -> None:
        """Tell the channels what changed; None for everything."""
        if self.catalog is not None and self.options.serves_channels:
            self.channels.follow(self.catalog, applied, incarnation=self.incarnation, now_ms=now_ms)

    def _say(self, what: str, **facts: Any) -> None:
        if len(self._lines) < LINES_MAX:
            self._lines.append(" ".join([what, *(f"{name}={value}" for name, value in facts.items())]))

    # --- registration --------------------------------------------------------------------------------------

    def _register(self, now_ms: int) -> None:
        """Register until the catalog shows it (NC2)."""
        if not self.registration.is_due:
            return
        assert self.member is not None
        assert self.storage is not None
        if self.member.raft.leader is None:
            self._messages += [(peer, Who()) for peer in self._peers if peer != self.node]
        # A member that was removed while it was away still counts itself as one, and hears of no leader by itself.
        leader = self.leader or self._leader_hint
        if leader is None:
            return
        incarnation = self.registration.next_incarnation(self._own_record())
        if self.storage.incarnation != incarnation:
            self.storage.note_incarnation(incarnation)
        disk_id, at_ms = self.storage.identity.disk, self._now_us() // 1000
        change = self.registration.request(incarnation, disk_id=disk_id, at_ms=at_ms)
        if leader == self.node:
            self._answer(self.node, self.member_controller.register(self.member, change))
        else:
            self._messages.append((leader, Register(change)))

    def _own_record(self) -> NodeRecord | None:
        catalog = self.catalog
        return None if catalog is None else catalog.node(self.node)

    def _note_registration(self, now_ms: int) -> None:
        """The catalog's record of this node: registered, or fenced and to be registered anew."""
        record = self._own_record()
        if record is None:
            return
        registration, was_valid = self.registration, self.registration.is_valid
        if registration.confirm(record):
            if not was_valid:
                self._follow_channels(None, now_ms)
                self.holder.restart(record.incarnation, now_ms)
                self.heartbeats.restart(record.incarnation, now_ms)
                self._follow_nodes(now_ms)
                self._say("registered", incarnation=record.incarnation)
            if not self.holder.is_fenced:
                return
        elif registration.is_awaited(record):
            return
        if registration.is_valid:
            self._say("fenced", incarnation=record.incarnation, state=record.state.value)
        registration.end()
        self._follow_channels(None, now_ms)
        self._seek_at_ms = min(self._seek_at_ms, now_ms)

    # --- what was applied ------------------------------------------------------------------------------------

    def _on_applied(self, applied: Applied, now_ms: int) -> None:
        if applied.refusal is not None:
            return
        changes = applied.change.changes if isinstance(applied.change, Batch) else (applied.change,)
        for change in changes:
            self.member_controller.applied(change, now_ms)
            if isinstance(change, FenceNode) and self.member_controller.is_leading:
                self._say("node fenced", node=change.node, incarnation=change.expected_incarnation)
        if any(isinstance(change, RegisterNode | RemoveNode | AdmitNode) for change in changes):
            self._follow_nodes(now_ms)

    def _follow_nodes(self, now_ms: int) -> None:
        catalog = self.catalog
        if catalog is None:
            return
        names = [record.node for record in catalog.nodes() if record.state in (NodeState.ACTIVE, NodeState.FENCED)]
        known = set(self.heartbeats.peers())
        self.heartbeats.set_peers(names, now_ms)
        # The link of a node that is new here came up before it was a peer, and does not come up again.
        for peer in self.heartbeats.peers():
            if peer not in known and peer in self._links:
                self.heartbeats.peer_up(peer, now_ms)
        self.proximity.set_nodes(names)
        self.channels.follow_beats()
