"""Sharing channels out among the members of a group: everything once, evenly, and with as few moves as may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from tidelog.core.catalog.group_assignment import Wishes, assign

MEMBERS = [f"m{number}" for number in range(8)]


def check(wishes: Wishes, shares: Mapping[str, Sequence[int]]) -> None:
    """GA1 and GA2."""
    given_out = [channel_id for share in shares.values() for channel_id in share]
    assert sorted(given_out) == sorted(wishes), "GA1: every channel once"
    for member, share in shares.items():
        assert list(share) == sorted(share)
        for channel_id in share:
            assert member in wishes[channel_id], "GA1: only who wants it"
            for other in wishes[channel_id]:
                assert len(share) - len(shares[other]) < 2, f"GA2: {member} has {share}, {other} has {shares[other]}"


@st.composite
def mixed_wishes(draw: st.DrawFn) -> Wishes:
    ids = draw(st.lists(st.integers(1, 200), unique=True, max_size=60))
    kinds = draw(st.lists(st.sets(st.sampled_from(MEMBERS), min_size=1), min_size=1, max_size=4))
    return {channel_id: tuple(sorted(draw(st.sampled_from(kinds)))) for channel_id in ids}


@given(
    wishes=mixed_wishes(), held=st.dictionaries(st.sampled_from(MEMBERS), st.lists(st.integers(1, 220), max_size=40))
)
def test_ga1_ga2_whatever_was_held_before(wishes: Wishes, held: dict[str, list[int]]) -> None:
    check(wishes, assign(wishes, {member: held.get(member, []) for member in MEMBERS}))


@given(wishes=mixed_wishes())
def test_ga3_what_is_shared_out_stays_so(wishes: Wishes) -> None:
    shares = assign(wishes, dict.fromkeys(MEMBERS, ()))
    assert assign(wishes, shares) == shares


@given(ids=st.sets(st.integers(1, 10_000), max_size=200), count=st.integers(1, 7))
def test_ga3_who_joins_takes_its_share_and_nothing_else_moves(ids: set[int], count: int) -> None:
    before_members, after_members = MEMBERS[:count], MEMBERS[: count + 1]
    before = assign(dict.fromkeys(ids, tuple(before_members)), dict.fromkeys(before_members, ()))
    wishes = dict.fromkeys(ids, tuple(after_members))
    after = assign(wishes, {**before, MEMBERS[count]: ()})
    check(wishes, after)
    assert max(map(len, after.values()), default=0) - min(map(len, after.values()), default=0) <= 1
    for member in before_members:
        assert set(after[member]) <= set(before[member]), "nothing moves between those who were there"
    assert len(after[MEMBERS[count]]) == len(ids) // (count + 1), "no more than its share"


@given(ids=st.sets(st.integers(1, 10_000), max_size=200), count=st.integers(2, 8), gone=st.integers(0, 7))
def test_ga3_who_leaves_moves_nothing_but_what_it_had(ids: set[int], count: int, gone: int) -> None:
    members = MEMBERS[:count]
    before = assign(dict.fromkeys(ids, tuple(members)), dict.fromkeys(members, ()))
    left = [member for member in members if member != members[gone % count]]
    wishes = dict.fromkeys(ids, tuple(left))
    after = assign(wishes, {member: before[member] for member in left})
    check(wishes, after)
    for member in left:
        assert set(before[member]) <= set(after[member])


def test_a_large_group_is_shared_out_in_no_time() -> None:
    members = tuple(f"m{number:03}" for number in range(256))
    wishes = dict.fromkeys(range(1, 20_001), members)
    shares = assign(wishes, dict.fromkeys(members, ()))
    assert {len(share) for share in shares.values()} == {78, 79}
    left = members[1:]
    after = assign(dict.fromkeys(wishes, left), {member: shares[member] for member in left})
    moved = sum(len(set(after[member]) - set(shares[member])) for member in left)
    assert moved == len(shares[members[0]])
