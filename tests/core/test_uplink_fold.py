"""What a channel knows of each lineage, as a fold (F1-F4)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.core.uplink.fold import ChannelFold, LineageFold

A, B = b"a" * 16, b"b" * 16


def test_an_announced_head_makes_everything_below_it_a_hole() -> None:
    fold = LineageFold()
    fold.announce(100)
    assert fold.holes() == [range(1, 101)]
    assert fold.cursor == 0


def test_the_cursor_stands_below_the_first_hole() -> None:
    fold = LineageFold()
    fold.data(range(1, 101))
    fold.data(range(200, 300))
    assert fold.cursor == 100
    assert fold.holes() == [range(101, 200)]


def test_the_seed_s_example_fills_from_the_left() -> None:
    fold = LineageFold()
    fold.data(range(1, 1000))
    fold.data(range(2000, 5000))
    fold.data(range(5500, 6000))
    assert fold.holes() == [range(1000, 2000), range(5000, 5500)]
    fold.data(range(1000, 1500))
    assert fold.holes() == [range(1500, 2000), range(5000, 5500)]


def test_the_cursor_passes_lost_and_void_ranges() -> None:
    fold = LineageFold()
    fold.data(range(1, 11))
    fold.declare_lost(range(11, 21))
    fold.declare_void(range(21, 31))
    fold.data(range(31, 41))
    assert fold.cursor == 40
    fold.check()


def test_data_beats_lost_and_void() -> None:
    """F4."""
    fold = LineageFold()
    fold.declare_lost(range(1, 11))
    fold.declare_void(range(11, 21))
    fold.data(range(5, 15))
    assert list(fold.held) == [range(5, 15)]
    assert list(fold.lost) == [range(1, 5)]
    assert list(fold.void) == [range(15, 21)]
    fold.check()


def test_what_is_held_can_no_longer_be_lost_or_void() -> None:
    fold = LineageFold()
    fold.data(range(1, 11))
    fold.declare_lost(range(1, 11))
    fold.declare_void(range(1, 11))
    assert not fold.lost
    assert not fold.void


def test_a_newer_session_makes_its_lineage_the_current_one() -> None:
    fold = ChannelFold()
    fold.session_opened(A, head=10, session=1, boot_id=b"1")
    fold.session_opened(B, head=5, session=2, boot_id=b"2")
    assert fold.current == B
    assert fold.session == 2
    assert fold.lineages[A].holes() == [range(1, 11)]
    assert fold.lineages[B].boot_id == b"2"


def test_a_copy_does_not_follow_the_original() -> None:
    fold = ChannelFold()
    fold.data(A, [range(1, 5)])
    twin = fold.copy()
    fold.data(A, [range(5, 9)])
    assert twin.lineages[A].cursor == 4


spans = st.tuples(st.integers(1, 60), st.integers(1, 20)).map(lambda pair: range(pair[0], pair[0] + pair[1]))
steps = st.lists(st.tuples(st.sampled_from(("data", "lost", "void", "announce")), spans), max_size=30)


@given(steps=steps)
def test_a_fold_agrees_with_plain_sets_and_its_cursor_never_falls(steps: list[tuple[str, range]]) -> None:
    fold = LineageFold()
    held: set[int] = set()
    lost: set[int] = set()
    void: set[int] = set()
    head = cursor = 0
    for what, seqs in steps:
        head = max(head, seqs.stop - 1)
        if what == "data":
            fold.data(seqs)
            held |= set(seqs)
            lost -= held
            void -= held
        elif what == "lost":
            fold.declare_lost(seqs)
            lost |= set(seqs) - held - void
        elif what == "void":
            fold.declare_void(seqs)
            void |= set(seqs) - held - lost
        else:
            fold.announce(seqs.stop - 1)
        fold.check()
        known = held | lost | void
        assert {seq for hole in fold.holes() for seq in hole} == set(range(1, head + 1)) - known
        expected = next(seq for seq in range(1, head + 3) if seq not in known) - 1
        assert fold.cursor == expected
        assert fold.cursor >= cursor, "UF3"
        cursor = fold.cursor


@given(steps=steps)
def test_a_snapshot_brings_back_the_same_fold(steps: list[tuple[str, range]]) -> None:
    fold = ChannelFold()
    fold.session_opened(B, head=3, session=7, boot_id=b"boot")
    for what, seqs in steps:
        lineage = fold.lineage(A)
        match what:
            case "data":
                fold.data(A, [seqs])
            case "lost":
                lineage.declare_lost(seqs)
            case "void":
                lineage.declare_void(seqs)
            case _:
                lineage.announce(seqs.stop)
    again = ChannelFold.from_state(fold.to_state())
    assert again.to_state() == fold.to_state()
    assert again.current == fold.current
    assert again.session == 7
