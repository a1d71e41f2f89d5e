"""Messages that gather between two `Ready`s."""

from __future__ import annotations

from tidelog.core.raft.messages import Envelope, Message, ReadAborted, ReadReady


class Outbox:
    __slots__ = ("after", "now", "reads")

    def __init__(self) -> None:
        self.now: list[Envelope] = []
        self.after: list[Envelope] = []
        """To be sent only once everything written so far is durable."""
        self.reads: list[ReadReady | ReadAborted] = []

    def send(self, to: str, message: Message) -> None:
        self.now.append(Envelope(to, message))

    def send_after(self, to: str, message: Message) -> None:
        self.after.append(Envelope(to, message))
