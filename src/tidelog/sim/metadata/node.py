"""One node of the simulated cluster: the production core on a simulated disk, with a clock of its own.

Stands in for the shell: it passes messages and the time in, sends what comes out, and writes behind a queue, so that
the core goes on while its disk is slow and one sync covers several writes. A node has *processes*, one after the
other; what was sent to one never reaches the next, for the connection went with it.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tidelog.cluster.metadata.member import Result, SaveOrder
from tidelog.cluster.node.core import METADATA_FOLDER, QUARANTINE_FOLDER, NodeCore, NodeFacts, NodeOptions
from tidelog.cluster.node.node_file import NODE_FILE
from tidelog.cluster.replication.replicas import ReplicasOutput
from tidelog.core.liveness import SessionRenewed
from tidelog.core.membership import member_name, node_of
from tidelog.core.node_messages import ForMember, NodeMessage, Register, Standing
from tidelog.core.raft import Ready, SnapshotChunk, VoteAnswer, VoteRequest
from tidelog.errors import DiskError, LogPoisoned, MetadataDamaged, MetadataPoisoned
from tidelog.sim.lying import Picture, put_back, take_picture
from tidelog.sim.metadata.model import ClusterBroken, MetadataModel, View
from tidelog.sim.network import Scheduler
from tidelog.sim.power import PluggedDisk, PowerCut
from tidelog.storage.atomic import COPY_SUFFIX, marks_agree
from tidelog.storage.raft.opening import LIVE_NAME
from tidelog.storage.store.watermarks import Watermark

FOLDER: Final = ".tidelog"
METADATA: Final = f"{FOLDER}/{METADATA_FOLDER}"
QUARANTINE: Final = f"{FOLDER}/{QUARANTINE_FOLDER}"
BACKLOG_MAX: Final = 200
"""The most messages that wait for a paused node; its peers' buffers hold no more."""
POLLS_MAX: Final = 1_000
LINES_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class OldCopy:
    """A copy of a node's folder, and what the disk knew when it was made."""

    picture: Picture
    member: str
    term: int
    last_index: int
    incarnation: int | None
    asks: frozenset[str]
    """The nodes that a process will ask that finds this copy."""


class ClientMessage:
    """What the shells of nodes say to each other on behalf of clients."""

    __slots__ = ()


class NodeWorld(Protocol):
    """What a node uses of the world around it."""

    @property
    def rng(self) -> random.Random: ...

    @property
    def scheduler(self) -> Scheduler: ...

    @property
    def counters(self) -> Counter[str]: ...

    @property
    def model(self) -> MetadataModel: ...

    @property
    def nodes(self) -> Mapping[str, SimNode]: ...

    def send(self, source: SimNode, target: str, message: Any) -> None: ...

    def node_is_off(self, node: SimNode) -> None:
        """The process has ended."""

    def client_message(self, node: SimNode, sender: str, message: ClientMessage) -> None:
        """A message for the clients at a node has arrived."""


class SimNode:
    def __init__(self, world: NodeWorld, name: str, peers: tuple[str, ...], options: NodeOptions) -> None:
        rng = world.rng
        self.world = world
        self.name = name
        self.peers = peers
        self.options = options
        self.disk = PluggedDisk(random.Random(rng.getrandbits(64)))
        self.rng = random.Random(rng.getrandbits(64))
        self.rate = 1.0
        self.offset_ms = 0
        self.disk_ms = 0
        """How long a write takes; 0 for within the event that asks for it."""
        self.disk_usual_ms = 0
        self.disk_batch = 0
        """How much it writes at once; 0 for anything."""
        self.process = 0
        self.core: NodeCore | None = None
        self.view = View()
        self.tokens: dict[int, Callable[[Result], None]] = {}
        self.paused = False
        self.backlog: deque[tuple[str, Any]] = deque()
        self.queue: list[Ready | SaveOrder] = []
        self.retired = False
        """Removed by the operator, and switched off."""
        self.member = ""
        """The name of the disk that the present or last process had."""
        self._disk_due = False
        self._wake_ms = -1
        self._quarantined: set[str] = set()
        self._damage_seen: str | None = None
        self.lines: deque[str] = deque(maxlen=LINES_MAX)
        """Its last log line."""
        self.old_copy: OldCopy | None = None
        self.heard: dict[str, tuple[int, int]] = {}
        """Member to the newest term, and the newest committed index, that this process heard from it."""
        self._noted = False
        """The model knows of the storage of this process."""

    # --- time --------------------------------------------------------------------------------------------

    def clock_ms(self) -> int:
        """The node's own steady clock; it goes on while the node is paused or off."""
        return self.offset_ms + int(self.world.scheduler.now_ms * self.rate)

    def _moment(self, local_ms: int) -> int:
        """When the node's clock shows this, in the world's time."""
        return int((local_ms - self.offset_ms) / self.rate) + 1

    # --- start and end ------------------------------------------------------------------------------------

    def start(self) -> bool:
        """Boot. Whatever the disk does to it, the node tries again later."""
        if self.core is not None or self.retired:
            return False
        self.process += 1
        self.view = View()
        self.heard.clear()
        self._disk_due = False
        try:
            core = NodeCore(
                node=self.name,
                peers=self.peers,
                facts=self._facts(),
                disk=self.disk,
                folder=FOLDER,
                options=self.options,
                rng=self.rng,
                now_ms=self.clock_ms(),
                now_us=lambda: self.clock_ms() * 1_000,
                watermark_of=self._watermark_of,
            )
        except PowerCut:
            self._note_off(crashed=True)
            return True
        except (DiskError, LogPoisoned):
            self.disk.crash()  # handles and locks of the failed start go with it
            self._note_off(crashed=False)
            return True
        self.core = core
        self._wake_ms = -1
        self._damage_seen = None
        world = self.world
        self._look_at_damage(core)
        if self._quarantined and not self._quarantined <= set(self.disk.list_folder(QUARANTINE)):
            raise ClusterBroken(f"NC1: {self.name} lost what was set aside")
        self._noted = False
        for other in world.nodes.values():
            if other is not self and other.core is not None:
                core.link_up(other.name, self.clock_ms())
                other.core.link_up(self.name, other.clock_ms())
        self._after()
        return True

    def _look_at_damage(self, core: NodeCore) -> None:
        """Metadata was set aside, at the start or when the peers proved that it is an older copy."""
        if core.damage == self._damage_seen:
            return
        self._damage_seen, self._noted, self.view = core.damage, False, View()
        world = self.world
        world.counters["damage_found"] += 1
        if self.member and not world.model.durable[self.member].is_gone:
            raise ClusterBroken(f"RST1: the disk of {self.name} was never touched and is called damaged: {core.damage}")
        world.counters["old_copy_noticed"] += bool(self.member) and world.model.durable[self.member].is_old
        found = set(self.disk.list_folder(QUARANTINE))
        if not found - self._quarantined:
            raise ClusterBroken(f"NC1: {self.name} found damage and set nothing aside")
        self._quarantined |= found

    def _facts(self) -> NodeFacts:
        """The state of the process when it starts."""
        return NodeFacts(addresses=(("link", f"{self.name}:1"),))

    def _watermark_of(self, channel_id: int) -> Watermark | None:
        return None

    def _note_storage(self) -> None:
        """A process has found its metadata, or made it."""
        core = self.core
        assert core is not None
        assert core.storage is not None
        self._noted = True
        self.member = member_name(self.name, core.storage.identity.disk)
        model = self.world.model
        if self.member in model.durable:
            model.reopened(self.member, core.storage)
        else:
            model.born(self.member, core.storage)

    def _note_off(self, *, crashed: bool) -> None:
        """The process is gone."""
        core, self.core = self.core, None
        if core is not None and core.storage is not None and self._noted:
            self.world.model.durable[self.member].interrupted()
        self._let_channels_go(crashed=crashed)
        if crashed:
            self.disk.crash()
            self.world.counters["crash"] += 1
        elif core is not None and core.storage is not None:
            # The machine keeps running: release the lock and the handles, write nothing.
            core.storage._poison = core.storage._poison or "the process was killed"
            core.storage.close()
        self.disk.cut_after = None
        self.tokens.clear()
        self.queue.clear()
        self.backlog.clear()
        self.paused = False
        for other in self.world.nodes.values():
            if other.core is not None:
                other.core.link_down(self.name, other.clock_ms())
        self.world.node_is_off(self)

    def crash(self) -> None:
        """The power goes, perhaps in the middle of the write that is waiting."""
        if self.core is None:
            return
        if self.queue and self.rng.random() < 0.5:
            self.disk.cut_after = self.rng.randint(1, 8)
            self._guarded(self._write_queue)
        if self.core is not None:
            self._note_off(crashed=True)

    def kill(self) -> None:
        """The process dies, the machine does not."""
        if self.core is not None:
            self.world.counters["kill"] += 1
            self.disk.faults.fail_after = None
            self._note_off(crashed=False)

    def stop(self) -> None:
        """Cleanly: everything is written first."""
        core = self.core
        if core is None or self.paused:
            return
        if self.queue:
            self._guarded(self._write_queue)
        if self.core is core:
            self._guarded(self._stop_cleanly, core)
        if self.core is core:
            self.world.counters["clean_stop"] += 1
            self._note_off(crashed=False)

    def _stop_cleanly(self, core: NodeCore) -> None:
        core.stop_cleanly()

    def _let_channels_go(self, *, crashed: bool) -> None:
        """The process is gone, and what it held of channels with it. Here there are none."""

    def pause(self, pause_ms: int) -> None:
        if self.core is None or self.paused:
            return
        self.paused = True
        process = self.process
        self.world.scheduler.after(pause_ms, lambda: self._resume(process))

    def _resume(self, process: int) -> bool:
        if process != self.process or self.core is None:
            return False
        self.paused = False
        backlog, self.backlog = self.backlog, deque()
        for sender, message in backlog:
            self.deliver(sender, message)
        self.wake()
        if self.queue and not self._disk_due:
            self._write()
        return True

    # --- events ----------------------------------------------------------------------------------------------

    def deliver(self, sender: str, message: Any) -> bool:
        core = self.core
        if core is None:
            return False
        if self.paused:
            if len(self.backlog) < BACKLOG_MAX:
                self.backlog.append((sender, message))
            return False
        if isinstance(message, ClientMessage):
            self._guarded(self.world.client_message, self, sender, message)
        else:
            if type(message) is ForMember or type(message) is Standing:
                self._note_heard(core, message)
            self._guarded(core.receive, sender, message, self.clock_ms())
        return True

    def _note_heard(self, core: NodeCore, message: ForMember | Standing) -> None:
        """The evidence that this process has against an older copy of the sender's disk, by the world's own account."""
        if isinstance(message, Standing):
            member, term, committed = message.member, message.term, message.committed
        else:
            said, member, committed = message.message, message.sender, 0
            if core.member is None or message.target != core.member.member:
                return
            if isinstance(said, VoteRequest | VoteAnswer) and said.pre:
                return
            term = said.term
        known_term, known_index = self.heard.get(member, (0, 0))
        if term > known_term or committed > known_index:
            self.heard[member] = max(term, known_term), max(committed, known_index)

    def wake(self) -> bool:
        core = self.core
        if core is None or self.paused:
            return False
        self._wake_ms = -1
        self._guarded(core.wake, self.clock_ms())
        return True

    def do(self, action: Callable[[NodeCore], None]) -> None:
        """A request of a client or an operator at this node."""
        core = self.core
        if core is not None and not self.paused:
            self._guarded(action, core)

    def _guarded(self, action: Callable[..., Any], *arguments: Any) -> None:
        """Run it with its consequences; a disk error ends the process (S3)."""
        try:
            action(*arguments)
            if self.core is not None:
                self._after()
        except PowerCut:
            self._note_off(crashed=True)
        except MetadataDamaged as error:
            if not self.world.model.durable[self.member].is_old:
                raise ClusterBroken(
                    f"RST1: the disk of {self.name} was never touched and is given up: {error}"
                ) from error
            self._note_off(crashed=False)
        except (MetadataPoisoned, LogPoisoned, DiskError):
            self.world.counters["disk_failed"] += 1
            self._note_off(crashed=False)

    def _after(self) -> None:
        """Carry out what the core wants, look at it, and set its timer."""
        core = self.core
        assert core is not None
        world, model, now_ms = self.world, self.world.model, self.clock_ms()
        polls = 0
        self._look_at_damage(core)
        if not self._noted and core.storage is not None:
            self._note_storage()
        while True:
            output = core.poll(now_ms)
            if output is None:
                break
            if core.member is not None:
                model.watch(core.member, self.view)
            polls += 1
            if polls > POLLS_MAX:
                raise ClusterBroken(f"12: {self.name} has no end of things to do")
            self.lines.extend(output.lines)
            if output.replicas is not None:
                self._channels_said(core, output.replicas)
            for target, message in output.messages:
                self._send(core, target, message)
            member = output.member
            if member is not None:
                if member.write is not None:
                    self.queue.append(member.write)
                if member.save is not None:
                    self.queue.append(member.save)
                for applied in member.applied:
                    model.check_applied(self.member, applied)
            for result in output.results:
                waiting = self.tokens.pop(result.token, None)
                if waiting is not None:
                    waiting(result)
            if self.queue and self.disk_ms == 0:
                self._write_queue()
        if core.member is not None:
            model.watch(core.member, self.view)
            fenced = model.fenced.get(self.name)
            if fenced is not None and core.holder.incarnation <= fenced[0] and core.holder.is_valid(now_ms):
                raise ClusterBroken(
                    f"L1: {self.name} believes in incarnation {core.holder.incarnation}, which is fenced"
                )
        if self.queue and not self._disk_due:
            self._disk_due = True
            process = self.process
            world.scheduler.after(self.disk_ms, lambda: self._disk_is_done(process))
        self._set_timer(core)

    def _channels_said(self, core: NodeCore, output: ReplicasOutput) -> None:
        """What the channels want of storage; the metadata's world has no storage for them."""

    def _set_timer(self, core: NodeCore) -> None:
        at_ms = max(self._moment(core.wake_at_ms()), self.world.scheduler.now_ms + 1)
        if self._wake_ms < 0 or at_ms < self._wake_ms:
            self._wake_ms = at_ms
            process = self.process
            self.world.scheduler.at(at_ms, lambda: self._timer(process, at_ms))

    def _timer(self, process: int, at_ms: int) -> bool:
        if process != self.process or at_ms != self._wake_ms:
            return False
        core = self.core
        if core is not None and not self.paused and core.wake_at_ms() > self.clock_ms():
            self._wake_ms = -1
            self._set_timer(core)  # it was put off meanwhile
            return False
        return self.wake()

    def _send(self, core: NodeCore, target: str, message: NodeMessage) -> None:
        model = self.world.model
        if isinstance(message, ForMember):
            assert core.member is not None
            model.check_message(message.sender, message.target, message.message, core.member.raft)
            if isinstance(message.message, SnapshotChunk):
                self.world.counters["snapshot_chunk"] += 1
        elif isinstance(message, SessionRenewed):
            assert core.member is not None
            model.check_renewed(self.name, message.node, message.incarnation, core.member.applied_index)
        elif isinstance(message, Register):
            model.check_register(message.change)
        self.world.send(self, target, message)

    # --- the disk --------------------------------------------------------------------------------------------

    def _disk_is_done(self, process: int) -> bool:
        if process != self.process or self.core is None:
            return False
        self._disk_due = False
        if self.paused:
            return False
        return self._write()

    def _write(self) -> bool:
        """The disk is done with what it was given; what came meanwhile may have to wait for its turn."""
        if not self.queue:
            return False
        count = self.disk_batch or (
            len(self.queue) if self.rng.random() < 0.5 else self.rng.randint(1, len(self.queue))
        )
        waiting, self.queue = self.queue[count:], self.queue[:count]
        process = self.process

        def write() -> None:
            self._write_queue()
            self.queue = waiting + self.queue

        self._guarded(write)
        if process != self.process or self.core is None:
            self.queue.clear()
        return True

    def _write_queue(self) -> None:
        """Write what is waiting: neighbouring Readys with one sync, snapshots between them."""
        core = self.core
        assert core is not None
        storage, member = core.storage, core.member
        assert storage is not None
        assert member is not None
        durable = self.world.model.durable[self.member]
        work, self.queue = self.queue, []
        place = 0
        while place < len(work):
            item = work[place]
            if isinstance(item, Ready):
                readys = [item]
                while place + len(readys) < len(work) and isinstance(work[place + len(readys)], Ready):
                    readys.append(work[place + len(readys)])  # type: ignore[arg-type]
                durable.begin_write(readys)
                storage.write(readys)
                self.world.counters["log_cut"] += durable.finish()
                place += len(readys)
                if any(ready.snapshot is not None for ready in readys):
                    self.world.counters["snapshot_installed"] += 1
                core.written(readys[-1].number)
            else:
                snapshot = item.snapshot()
                self.world.model.check_snapshot(self.member, snapshot.head, snapshot.data)
                durable.begin_save(snapshot)
                storage.save_snapshot(snapshot, keep_from_index=item.keep_from_index)
                durable.finish()
                place += 1
                member.saved(snapshot, item.keep_from_index)
                self.world.counters["compacted"] += 1
        if self.rng.random() < 0.2:
            storage.settle()

    def copy_folder(self, *, whole: bool) -> None:
        """A backup, or a snapshot of the virtual machine. The node is on and has metadata."""
        assert self.core is not None
        assert self.core.storage is not None
        durable = self.world.model.durable[self.member]
        voters = durable.members.voters
        others = {node_of(voter) for voter in voters} - {self.name}
        self.old_copy = OldCopy(
            picture=take_picture(self.disk, FOLDER if whole else METADATA),
            member=self.member,
            term=durable.hard_state.term,
            last_index=durable.last_index,
            incarnation=self.core.storage.incarnation,
            asks=frozenset(others or set(self.peers) - {self.name}),
        )

    def remembers_more(self, copy: OldCopy) -> bool:
        """Whether this process knows that the disk of the copy held more than the copy does."""
        core = self.core
        if core is None or self.name not in copy.asks:
            return False
        term, committed = self.heard.get(copy.member, (0, 0))
        node, _, disk = copy.member.partition("/")
        record = None if core.catalog is None else core.catalog.node(node)
        registered = record.incarnation if record is not None and record.disk_id == disk else 0
        return (
            term > copy.term
            or committed > copy.last_index
            or (copy.incarnation is not None and registered > copy.incarnation)
        )

    def restore_folder(self) -> None:
        """It is off, and its folder is what it was when it was copied."""
        assert self.core is None
        copy = self.old_copy
        assert copy is not None
        assert copy.member == self.member
        put_back(self.disk, copy.picture)
        if copy.picture.path == FOLDER:
            self.forget_quarantine()
            self.world.model.forget_incarnations(self.name)
        durable = self.world.model.durable[self.member]
        durable.is_old = durable.is_gone = True
        self.old_copy = None

    def forget_quarantine(self) -> None:
        """The whole disk was replaced."""
        self._quarantined.clear()

    def files(self) -> list[str]:
        """The files of the metadata in which a bit may flip. Of the node's own file one copy at a time."""
        found, folders = [], [f"{METADATA}/{LIVE_NAME}"]
        own = f"{FOLDER}/{NODE_FILE}"
        if marks_agree(self.disk, own):
            found += [own, own + COPY_SUFFIX]
        while folders:
            folder = folders.pop()
            for name in self.disk.list_folder(folder) if self.disk.exists(folder) else ():
                path = f"{folder}/{name}"
                try:
                    size = self.disk.open(path, writable=False).size()
                except DiskError:
                    folders.append(path)
                else:
                    found += [path] if size else []
        return sorted(found)
