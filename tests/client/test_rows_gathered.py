"""Many records with keys and headers at once, in batches."""

from __future__ import annotations

from tests.blocks.crafted import stamped
from tidelog.blocks.header import NO_PRODUCER, Codec
from tidelog.blocks.messages import Message, decode_messages
from tidelog.client.producing.batching import Gathering, row_bytes


def test_rows_fill_batches_in_order_within_their_limits_and_join_values() -> None:
    gathering = Gathering(batch_bytes_max=400, batch_records_max=7)
    parts = gathering.add_values([b"a", b"b"], deadline_ms=1, time_us=5)
    rows = [Message(6, b"v" * (number % 50), b"k%d" % number, [("h", b"x")] * (number % 2)) for number in range(40)]
    parts += gathering.add_rows(rows, deadline_ms=1)
    assert gathering.bytes == sum(map(row_bytes, rows)) + sum(map(row_bytes, (Message(5, b"a"), Message(5, b"b"))))
    batches = []
    while len(gathering):
        batches.append(gathering.take())
    assert gathering.bytes == 0
    assert parts[0][0] is parts[1][0], "rows join a batch of values"
    found: list[Message] = []
    for batch in batches:
        assert len(batch) <= 7
        assert batch.bytes <= 400
        made = batch.encode(base_seq=0, producer=NO_PRODUCER, codec=Codec.NONE)
        block = stamped(made, base_offset=0)
        found += decode_messages(block.maker, block.raw_body()).rows()
    assert [(one.time_us, one.key, one.value) for one in found[:2]] == [(5, None, b"a"), (5, None, b"b")]
    assert [(one.key, one.value, list(one.headers)) for one in found[2:]] == [
        (row.key, row.value, list(row.headers)) for row in rows
    ]
    places = [(batches.index(batch), place) for batch, span in parts for place in span]
    assert places == sorted(places), "each is told its own place"
    assert len(places) == 42
