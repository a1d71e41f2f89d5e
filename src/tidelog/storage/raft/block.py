"""One Raft entry as one block: a message whose value is the entry's bytes.

The bytes are those that `tidelog.blocks.messages` makes of a single value, so any reader of message blocks reads these.
The columns are not built or decoded: for one record they are all zero, and handling them would be most of the cost of a
write (measured: 11 us of 45, and half of opening).
"""

from __future__ import annotations

import struct
from typing import Final

from tidelog.blocks.block import Block, MadeBlock, make_block
from tidelog.blocks.header import BlockKind
from tidelog.blocks.messages import HAS_VALUE, MESSAGE_FORM
from tidelog.codecs.raft_codec import decode_entry, encode_entry
from tidelog.core.raft.messages import Entry
from tidelog.errors import BadMessage

_COLUMNS: Final = struct.Struct("<24sI16sB")
"""Head, time and ends of the key; where the value ends; no headers; which of key and value there are."""
_BEFORE: Final = bytes(24)
_AFTER: Final = bytes(16)
_MESSAGES: Final = int(BlockKind.MESSAGES)


def entry_block(entry: Entry, *, time_us: int) -> MadeBlock:
    value = encode_entry(entry)
    return make_block(
        _COLUMNS.pack(_BEFORE, len(value), _AFTER, HAS_VALUE) + value,
        kind=BlockKind.MESSAGES,
        form=MESSAGE_FORM,
        record_count=1,
        time_min_us=time_us,
        time_max_us=time_us,
    )


def block_entry(block: Block) -> Entry:
    """The entry of a block that was checked; `BadMessage` if it holds something else."""
    maker = block.maker
    if (maker.kind, maker.form, maker.record_count) != (_MESSAGES, MESSAGE_FORM, 1) or block.windows:
        raise BadMessage(problem="a block of the log holds something else than one entry")
    raw = memoryview(block.raw_body())
    value = raw[_COLUMNS.size :]
    if len(raw) < _COLUMNS.size or _COLUMNS.unpack_from(raw) != (_BEFORE, len(value), _AFTER, HAS_VALUE):
        raise BadMessage(problem="a block of the log holds a message that is no entry")
    return decode_entry(value)
