"""Single records of clients: those that arrived in one turn become one block per channel and producer.

PU1  Every record is answered once, in a run with its neighbours, as long as its link is open.
PU2  Records of one client keep their order. A head that cannot be read ends its link: whose record it was is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tidelog.blocks.header import NO_PRODUCER
from tidelog.blocks.messages import Message, encode_messages, encode_values
from tidelog.cluster.clients.produce import ClientLink, Producing, with_address
from tidelog.cluster.local_channels import LocalChannels
from tidelog.codecs.publish_codec import HEAD_BYTES, PUBLISHED, Published, Run, encode_published, read_runs
from tidelog.core.client_messages import AckPolicy, Produce, Produced
from tidelog.errors import BadMessage, LinkBusy, LinkClosed, LogError
from tidelog.storage.log.writer import wall_clock_us
from tidelog.transports.link.frames import SMALL_BYTES_MAX

_ACKS = {int(policy): policy for policy in AckPolicy}
_RECORDS_MAX = 8_192
"""The most records of one block: with more a commit takes longer than its neighbours should wait."""


class RecordPublishing:
    def __init__(
        self, channels: LocalChannels, producing: Producing, *, clock_us: Callable[[], int] = wall_clock_us
    ) -> None:
        self._channels = channels
        self._producing = producing
        self._clock_us = clock_us
        self._waiting: dict[ClientLink, list[memoryview]] = {}
        self._answers: dict[ClientLink, list[Published]] = {}
        self.records_taken = 0

    def receive(self, client: ClientLink, body: memoryview) -> None:
        """One record; it is parsed in `gather`."""
        waiting = self._waiting.get(client)
        if waiting is None:
            self._waiting[client] = [body]
        else:
            waiting.append(body)

    @property
    def has_records(self) -> bool:
        return bool(self._waiting)

    def gather(self) -> None:
        """Make blocks of the records that arrived in this turn."""
        waiting, self._waiting = self._waiting, {}
        for client, bodies in waiting.items():
            try:
                runs = read_runs(bodies)
            except BadMessage as error:
                client.link.abort(f"a client sent what cannot be read: {error}")
                continue
            for run in runs:
                for start in range(run.start, run.stop, _RECORDS_MAX):
                    self._publish(client, run, bodies, range(start, min(run.stop, start + _RECORDS_MAX)))

    def _publish(self, client: ClientLink, run: Run, bodies: Sequence[memoryview], part: range) -> None:
        before = part.start - run.start
        token, producer = run.token + before, run.producer
        request = Produce(
            token=token, channel_id=run.channel_id, leader_epoch=run.leader_epoch, ack=_ACKS[run.ack], block=()
        )
        mine = bodies[part.start : part.stop]
        receipt = partial(self._answered, client, token, len(part))
        try:
            base_seq = run.seq + before if run.seq and producer != NO_PRODUCER else 0
            if run.key_bytes is not None:
                messages = self._messages(mine, run.key_bytes[before : before + len(part)])
                made = encode_messages(messages, base_seq=base_seq, producer=producer)
            else:
                values = [body[HEAD_BYTES:] for body in mine]
                made = encode_values(values, time_us=self._clock_us(), base_seq=base_seq, producer=producer)
        except LogError as error:
            receipt(Produced(token=token, error=error))
            return
        self.records_taken += len(part)
        self._producing.take_records(client, request, made, len(made.body), receipt)

    def _messages(self, bodies: Sequence[memoryview], key_bytes: Sequence[int]) -> list[Message]:
        now_us = self._clock_us()
        messages = []
        for body, size in zip(bodies, key_bytes, strict=True):
            start = HEAD_BYTES + size
            key = bytes(body[HEAD_BYTES:start]) if size else None
            messages.append(Message(time_us=now_us, key=key, value=bytes(body[start:])))
        return messages

    # --- answers ---------------------------------------------------------------------------------------------

    def _answered(self, client: ClientLink, token: int, count: int, produced: Produced) -> None:
        error = None if produced.error is None else with_address(produced.error, self._channels)
        answer = Published(token=token, count=count, first_offset=produced.first_offset, error=error)
        self._answers.setdefault(client, []).append(answer)

    def flush(self) -> None:
        """Send the answers now."""
        if not self._answers:
            return
        answers, self._answers = self._answers, {}
        for client, published in answers.items():
            if client.link.is_closed:
                continue
            try:
                for body in _bodies(published):
                    client.link.put(PUBLISHED, body)
                client.link.flush()
            except LinkBusy:
                client.link.abort("the client does not take its answers")
            except LinkClosed:
                continue  # the client finds out about its records on its next link


def _bodies(answers: Sequence[Published]) -> list[bytes]:
    bodies: list[bytes] = []
    parts: list[bytes] = []
    size = 0
    for answer in answers:
        encoded = encode_published(answer)
        if parts and size + len(encoded) > SMALL_BYTES_MAX:
            bodies.append(b"".join(parts))
            parts, size = [], 0
        parts.append(encoded)
        size += len(encoded)
    return [*bodies, b"".join(parts)]
