"""The newest frames of the bus, by seq."""

from __future__ import annotations

from tidelog.edge.journal.ring import Ring


def ring(frames: int, *, frames_max: int = 100, first: int = 1) -> Ring:
    made = Ring(frames_max=frames_max)
    for seq in range(first, first + frames):
        made.append(seq, seq * 10, seq, bytes([seq % 256]))
    return made


def test_a_ring_gives_back_the_frames_of_the_seqs_asked_for() -> None:
    frames = ring(10).frames(range(3, 6))
    assert frames is not None
    assert list(frames.rows()) == [(30, 3, b"\x03"), (40, 4, b"\x04"), (50, 5, b"\x05")]


def test_frames_that_have_left_the_ring_are_not_made_up() -> None:
    small = ring(10, frames_max=4)
    assert small.seqs == range(7, 11)
    assert small.frames(range(6, 8)) is None
    assert small.frames(range(7, 11)) is not None


def test_frames_that_are_not_there_yet_are_not_made_up() -> None:
    assert ring(10).frames(range(9, 12)) is None


def test_a_jump_of_the_seqs_starts_anew() -> None:
    """After a power cut the journal goes on above its lease."""
    made = ring(10)
    made.append(500, 0, 0, b"")
    assert made.seqs == range(500, 501)
    assert made.frames(range(10, 11)) is None


def test_a_new_lineage_starts_anew_at_seq_one() -> None:
    made = ring(10)
    made.append(1, 0, 0, b"new")
    frames = made.frames(range(1, 2))
    assert frames is not None
    assert list(frames.rows()) == [(0, 0, b"new")]


def test_an_empty_ring_holds_nothing() -> None:
    made = Ring()
    assert made.seqs == range(1, 1)
    assert made.frames(range(1, 2)) is None


def test_a_ring_that_has_turned_over_gives_the_right_frames() -> None:
    for count in range(1, 30):
        turned = ring(count, frames_max=7)
        for start in turned.seqs:
            for stop in range(start + 1, turned.seqs.stop + 1):
                frames = turned.frames(range(start, stop))
                assert frames is not None
                assert list(frames.rows()) == [(seq * 10, seq, bytes([seq])) for seq in range(start, stop)]
