"""Header compression of HTTP/2 (RFC 7541): reads everything, writes the simplest form.

A reader must follow the peer's table, including the Huffman code. A writer need not use any of it: the server writes a
few short headers, so literals with the names of the static table are enough.

What a caller must keep: one `HeaderDecoder` for each connection; every block goes through it in order, also of
requests that are refused, since each may change the table for the next. After an error the connection is over.

HC1  What is written reads back as the same pairs.
HC2  No input makes reading raise anything but `BadMessage`. Table, list and every number have a limit that is checked
     before memory is used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Final, TypeAlias

from tidelog.errors import BadMessage
from tidelog.units import KIB

Header: TypeAlias = tuple[bytes, bytes]

TABLE_BYTES: Final = 4 * KIB
"""The size of the peer's table; HTTP/2's default."""
LIST_BYTES_MAX: Final = 16 * KIB
"""The size of all headers of a request, each counted with `_ENTRY_BYTES` on top."""
_ENTRY_BYTES: Final = 32
_NUMBER_MAX: Final = 2**24

_STATIC_NAMES: Final = (
    b":authority :method :method :path :path :scheme :scheme :status :status :status :status :status :status :status "
    b"accept-charset accept-encoding accept-language accept-ranges accept access-control-allow-origin age allow "
    b"authorization cache-control content-disposition content-encoding content-language content-length "
    b"content-location content-range content-type cookie date etag expect expires from host if-match "
    b"if-modified-since if-none-match if-range if-unmodified-since last-modified link location max-forwards "
    b"proxy-authenticate proxy-authorization range referer refresh retry-after server set-cookie "
    b"strict-transport-security transfer-encoding user-agent vary via www-authenticate"
).split()
_STATIC_VALUES: Final = {
    2: b"GET",
    3: b"POST",
    4: b"/",
    5: b"/index.html",
    6: b"http",
    7: b"https",
    8: b"200",
    9: b"204",
    10: b"206",
    11: b"304",
    12: b"400",
    13: b"404",
    14: b"500",
    16: b"gzip, deflate",
}
_STATIC: Final = tuple((name, _STATIC_VALUES.get(number, b"")) for number, name in enumerate(_STATIC_NAMES, 1))
_BY_HEADER: Final = {header: number for number, header in enumerate(_STATIC, 1)}
_BY_NAME: Final = {name: number for number, name in reversed(list(enumerate(_STATIC_NAMES, 1)))}

# The code is canonical: the number of bits of each symbol says all of it. The last symbol, 256, is the end's.
_BITS: Final = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b08060606"
    "0505050606060606060607080f060c0a0d06070707070707070707070707070707070707070707070807080d130d0e06"
    "0f05060506050606060507070606060506070605050607070707070f0b0e0d1c14161414161616171617171717171817"
    "181816171817171717151617161717181615141616171715171616181516171715151615171617171416161617161617"
    "1a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b14181415161515171616191918181a17"
    "1a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a1e"
)
_END: Final = 256


_PADDING_BITS_MAX: Final = 7
_NO_STATE: Final = -1

_Step: TypeAlias = tuple[int, bytes]
"""The state after four more bits, and the letters that end in them."""


def _tree() -> list[list[int]]:
    """The code as nodes with two branches each: another node, or a letter as -1 - letter."""
    nodes = [[0, 0]]
    following, bits_before = 0, 0
    for bits in sorted(set(_BITS)):
        following <<= bits - bits_before
        bits_before = bits
        for symbol in [symbol for symbol, count in enumerate(_BITS) if count == bits]:
            node = 0
            for shift in range(bits - 1, 0, -1):
                branch = following >> shift & 1
                if not nodes[node][branch]:
                    nodes.append([0, 0])
                    nodes[node][branch] = len(nodes) - 1
                node = nodes[node][branch]
            nodes[node][following & 1] = -1 - symbol
            following += 1
    return nodes


@cache
def _steps() -> tuple[list[list[_Step]], frozenset[int]]:
    """By state and four bits, so that a long text costs two looks a byte; and the states in which a text may end."""
    nodes = _tree()
    steps = [[_step(nodes, state, bits) for bits in range(16)] for state in range(len(nodes))]
    ends, node = {0}, 0
    for _ in range(_PADDING_BITS_MAX):  # padding is the beginning of the end symbol's code: ones
        node = nodes[node][1]
        ends.add(node)
    return steps, frozenset(ends)


def _step(nodes: list[list[int]], state: int, bits: int) -> _Step:
    letters = bytearray()
    for shift in (3, 2, 1, 0):
        state = nodes[state][bits >> shift & 1]
        if state < 0:
            if -1 - state == _END:
                return _NO_STATE, b""
            letters.append(-1 - state)
            state = 0
    return state, bytes(letters)


def decode_huffman(data: bytes) -> bytes:
    """Text that was written with Huffman's code."""
    steps, ends = _steps()
    found = bytearray()
    state = 0
    for byte in data:
        for bits in (byte >> 4, byte & 15):
            state, letters = steps[state][bits]
            if state == _NO_STATE:
                raise BadMessage(problem="a header holds the end of Huffman's code as a letter")
            if letters:
                found += letters
    if state not in ends:
        raise BadMessage(problem="a header in Huffman's code ends in the middle of a letter")
    return bytes(found)


class HeaderDecoder:
    """The decoder of one connection's headers."""

    def __init__(self, *, list_bytes_max: int = LIST_BYTES_MAX) -> None:
        self._list_bytes_max = list_bytes_max
        self._entries: deque[Header] = deque()
        """The newest first."""
        self._bytes = 0
        self._bytes_max = TABLE_BYTES

    def decode(self, block: bytes) -> list[Header]:
        """All headers of one block, in order."""
        found: list[Header] = []
        left = self._list_bytes_max
        position = 0
        while position < len(block):
            kind = block[position]
            if kind & 0xE0 == 0x20:
                if found:
                    raise BadMessage(problem="a header table changes its size between headers")
                position = self._resize(block, position)
                continue
            if kind & 0x80:
                number, position = _number(block, position, 7)
                header = self._entry(number)
            else:
                is_kept = bool(kind & 0x40)
                number, position = _number(block, position, 6 if is_kept else 4)
                if number:
                    name = self._entry(number)[0]
                else:
                    name, position = _text(block, position)
                value, position = _text(block, position)
                header = (name, value)
                if is_kept:
                    self._keep(header)
            left -= len(header[0]) + len(header[1]) + _ENTRY_BYTES
            if left < 0:
                raise BadMessage(problem=f"the headers of a request have more than {self._list_bytes_max} bytes")
            found.append(header)
        return found

    def _resize(self, block: bytes, position: int) -> int:
        self._bytes_max, position = _number(block, position, 5)
        if self._bytes_max > TABLE_BYTES:
            raise BadMessage(problem=f"a header table of {self._bytes_max} bytes was not offered")
        self._evict()
        return position

    def _entry(self, number: int) -> Header:
        if 1 <= number <= len(_STATIC):
            return _STATIC[number - 1]
        place = number - len(_STATIC) - 1
        if not 0 <= place < len(self._entries):
            raise BadMessage(problem=f"a header refers to entry {number} of the table, which is not there")
        return self._entries[place]

    def _keep(self, header: Header) -> None:
        self._entries.appendleft(header)
        self._bytes += len(header[0]) + len(header[1]) + _ENTRY_BYTES
        self._evict()

    def _evict(self) -> None:
        while self._bytes > self._bytes_max:
            name, value = self._entries.pop()
            self._bytes -= len(name) + len(value) + _ENTRY_BYTES


def _number(block: bytes, position: int, bits: int) -> tuple[int, int]:
    """A number that begins in the low bits of a byte, and where it ends."""
    mask = (1 << bits) - 1
    number = block[position] & mask
    position += 1
    if number < mask:
        return number, position
    shift = 0
    while True:
        if position >= len(block):
            raise BadMessage(problem="a header block ends in the middle of a number")
        byte = block[position]
        position += 1
        number += (byte & 0x7F) << shift
        shift += 7
        if number > _NUMBER_MAX or shift > 28:
            raise BadMessage(problem="a header block holds a number that cannot be")
        if not byte & 0x80:
            return number, position


def _text(block: bytes, position: int) -> tuple[bytes, int]:
    if position >= len(block):
        raise BadMessage(problem="a header block ends before a text")
    is_huffman = bool(block[position] & 0x80)
    length, position = _number(block, position, 7)
    end = position + length
    if end > len(block):
        raise BadMessage(problem="a header block ends in the middle of a text")
    text = block[position:end]
    return (decode_huffman(text) if is_huffman else text), end


def encode_headers(headers: Sequence[Header]) -> bytes:
    """One block. Nothing is put into the peer's table."""
    parts: list[bytes] = []
    for header in headers:
        number = _BY_HEADER.get(header)
        if number is not None:
            parts.append(_numbered(0x80, 7, number))
            continue
        name, value = header
        known = _BY_NAME.get(name, 0)
        parts.append(_numbered(0, 4, known))
        if not known:
            parts += _numbered(0, 7, len(name)), name
        parts += _numbered(0, 7, len(value)), value
    return b"".join(parts)


def _numbered(kind: int, bits: int, number: int) -> bytes:
    mask = (1 << bits) - 1
    if number < mask:
        return bytes((kind | number,))
    found = bytearray((kind | mask,))
    number -= mask
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
