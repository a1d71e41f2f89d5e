"""Pieces of a body that lie side by side."""

from __future__ import annotations

import random

from tidelog.transports.link.memory import BodyMemory
from tidelog.transports.link.views import side_by_side


def test_views_that_touch_become_one_without_a_copy() -> None:
    room = BodyMemory().take(1_000)
    (joined,) = side_by_side([room[:128], room[128:700], room[700:]])
    assert isinstance(joined, memoryview)
    room[500] = 77
    assert len(joined) == 1_000
    assert joined[500] == 77, "VW1: it is the same memory"


def test_what_does_not_touch_stays_apart() -> None:
    room, other = BodyMemory().take(1_000), BodyMemory().take(1_000)
    pieces: list[bytes | memoryview] = [room[:10], room[11:20], other[:10], room[20:30], room[10:20], b"ab", b"cd"]
    assert side_by_side(pieces) == pieces
    assert side_by_side([]) == []


def test_whatever_the_pieces_the_bytes_are_the_same() -> None:
    for seed in range(200):
        dice = random.Random(seed)
        memory = BodyMemory()
        rooms = [memory.take(4_096) for _ in range(2)]
        for room in rooms:
            room[:] = dice.randbytes(4_096)
        pieces: list[bytes | memoryview] = []
        room, place = rooms[0], 0
        for _ in range(30):
            if dice.random() < 0.2:
                room, place = dice.choice(rooms), dice.randrange(4_000)
            if dice.random() < 0.1:
                pieces.append(dice.randbytes(5))
            size = dice.randrange(200)
            pieces.append(room[place : place + size])
            place += size
        joined = side_by_side(pieces)
        assert b"".join(joined) == b"".join(pieces), f"VW1, seed {seed}"
        assert len(joined) <= len(pieces)
