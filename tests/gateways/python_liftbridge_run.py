"""What python-liftbridge does with a server, run inside its own venv: prints what it saw as one line of JSON.

Its generator surfaces the empty first message as a message; it shows a message's subject as its `stream`.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Any

from python_liftbridge import ErrNoSuchStream, ErrStreamExists, Lift, Message, Stream


def take(client: Lift, stream: Stream, count: int) -> list[dict[str, Any]]:
    """The next messages of a subscription, without the handshake."""
    found: list[dict[str, Any]] = []
    messages = client.subscribe(stream)
    first = next(messages)
    assert first.value == b"", "the handshake is an empty message"
    while len(found) < count:
        message = next(messages)
        found.append({"value": message.value.decode(), "offset": message.offset, "subject": message.stream})
    messages.close()
    return found


def main() -> None:
    client = Lift(ip_address=sys.argv[1], timeout=30)
    saw: dict[str, Any] = {}
    client.create_stream(Stream(subject="weather", name="weather-stream", replication_factor=1))
    client.create_stream(Stream(subject="all", name="everywhere", max_replication=True))
    try:
        client.create_stream(Stream(subject="weather", name="weather-stream"))
    except ErrStreamExists:
        saw["exists"] = True
    try:
        take(client, Stream(subject="x", name="nothing"), 1)
    except ErrNoSuchStream:
        saw["missing"] = True
    messages = [Message(value=f"message {number}", stream="weather-stream", key="k") for number in range(4)]
    client.publish(messages[0])
    client.publish(messages[1].ack_policy_leader())
    client.publish(messages[2].ack_policy_all())
    client.publish_to_subject(Message(value="by subject", subject="weather").ack_policy_all())

    def stream() -> Stream:
        return Stream(subject="weather", name="weather-stream")

    saw["earliest"] = earliest = take(client, stream().start_at_earliest_received(), 4)
    saw["latest"] = take(client, stream().start_at_latest_received(), 1)
    saw["offset"] = take(client, stream().start_at_offset(earliest[2]["offset"]), 2)
    saw["time_delta"] = take(client, stream().start_at_time_delta(timedelta(hours=1)), 4)
    waiting = client.subscribe(stream())
    next(waiting)
    client.publish(messages[3])
    saw["new_only"] = next(waiting).value.decode()
    waiting.close()
    metadata = client.fetch_metadata()
    saw["brokers"] = [[broker.id, broker.host, broker.port] for broker in metadata.brokers]
    saw["streams"] = {found.name: found.subject for found in metadata.metadata}
    client.close()
    print(json.dumps(saw))


main()
