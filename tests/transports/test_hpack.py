"""Header compression: the examples of RFC 7541's appendix C, the way there and back, and rubbish."""

from __future__ import annotations

import random

import pytest

from tidelog.errors import BadMessage
from tidelog.transports.grpc.hpack import LIST_BYTES_MAX, TABLE_BYTES, HeaderDecoder, decode_huffman, encode_headers

FIRST = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
SECOND = [*FIRST, (b"cache-control", b"no-cache")]
THIRD = [
    (b":method", b"GET"),
    (b":scheme", b"https"),
    (b":path", b"/index.html"),
    (b":authority", b"www.example.com"),
    (b"custom-key", b"custom-value"),
]
PLAIN = (
    "828684410f7777772e6578616d706c652e636f6d",
    "828684be58086e6f2d6361636865",
    "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
)
HUFFMAN = (
    "828684418cf1e3c2e5f23a6ba0ab90f4ff",
    "828684be5886a8eb10649cbf",
    "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
)


@pytest.mark.parametrize("blocks", [PLAIN, HUFFMAN])
def test_requests_of_the_rfc_are_read_with_the_table_that_they_build(blocks: tuple[str, ...]) -> None:
    decoder = HeaderDecoder()
    assert [decoder.decode(bytes.fromhex(block)) for block in blocks] == [FIRST, SECOND, THIRD]


def test_what_is_written_reads_back_as_the_same_headers() -> None:
    """HC1, with a seed that is printed when it fails."""
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    names = (b":status", b"content-type", b"grpc-status", b"x" * 200)
    for _ in range(300):
        headers = [(dice.choice(names), dice.randbytes(dice.randrange(300))) for _ in range(dice.randrange(6))]
        assert HeaderDecoder().decode(encode_headers(headers)) == headers, f"seed {seed}"


def test_no_input_makes_reading_raise_anything_else() -> None:
    """HC2."""
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    for _ in range(3_000):
        data = dice.randbytes(dice.randrange(1, 60))
        try:
            HeaderDecoder().decode(data)
        except BadMessage:
            continue
        except Exception as error:
            pytest.fail(f"{error!r} for {data.hex()}, seed {seed}")


@pytest.mark.parametrize(
    "block",
    [
        "be",  # an entry that was never made
        "80",  # entry 0
        "3fe21f",  # a table of 4097 bytes
        "8220",  # the table's size after a header
        "ffffffffff7f",  # a number without end
        "0005616263",  # a text that is cut off
        "00",  # no text at all
    ],
)
def test_blocks_that_cannot_be_are_refused(block: str) -> None:
    with pytest.raises(BadMessage):
        HeaderDecoder().decode(bytes.fromhex(block))


def test_more_headers_than_the_limit_are_refused_before_they_are_kept() -> None:
    decoder = HeaderDecoder()
    header = encode_headers([(b"a", b"b" * 1_000)])
    with pytest.raises(BadMessage, match=str(LIST_BYTES_MAX)):
        decoder.decode(header * 20)


def test_the_table_forgets_the_oldest_and_never_outgrows_its_size() -> None:
    decoder = HeaderDecoder()
    for number in range(100):
        kept = b"\x40\x04k%03d\x7f\x49" % number + bytes(200)
        assert decoder.decode(kept) == [(b"k%03d" % number, bytes(200))]
    assert decoder.decode(b"\xbe") == [(b"k099", bytes(200))]
    held = TABLE_BYTES // (4 + 200 + 32)
    with pytest.raises(BadMessage):
        decoder.decode(bytes((0x80 | 62 + held,)))


@pytest.mark.parametrize("data", ["00", "07ff", "fffffffc", "ffffffff"])
def test_huffman_text_that_ends_badly_is_refused(data: str) -> None:
    with pytest.raises(BadMessage):
        decode_huffman(bytes.fromhex(data))
