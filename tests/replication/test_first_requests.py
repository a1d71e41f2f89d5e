"""First requests to leaders are few at a time, in order, and no place is ever lost."""

from __future__ import annotations

import random

import pytest

from tidelog.cluster.replication.first_requests import FirstRequests


def test_no_more_ask_at_once_than_allowed_and_the_rest_in_order() -> None:
    asks = FirstRequests(3)
    assert [asks.may_ask("a", channel_id) for channel_id in range(8)] == [True] * 3 + [False] * 5
    assert asks.granted() == []
    asks.answered(1)
    assert asks.granted() == [3]
    asks.in_contact(0)
    asks.in_contact(2)
    assert asks.granted() == [4, 5]
    assert (asks.asking, asks.waiting, asks.apart) == (3, 2, 6)
    assert asks.may_ask("a", 3), "it has its place already"


def test_who_asks_again_goes_behind_those_who_wait() -> None:
    asks = FirstRequests(1)
    assert asks.may_ask("a", 1)
    assert not asks.may_ask("a", 2)
    asks.answered(1)
    assert not asks.may_ask("a", 1), "channel 2 waits"
    assert not asks.may_ask("a", 2), "its turn comes by `granted`"
    assert asks.granted() == [2]
    asks.answered(2)
    assert asks.granted() == [1]


def test_an_answer_takes_no_waiting_channel_out_of_the_queue() -> None:
    asks = FirstRequests(1)
    asks.may_ask("a", 1)
    asks.may_ask("a", 2)
    asks.answered(2)
    asks.in_contact(1)
    assert asks.granted() == [2]


def test_a_node_that_never_answers_keeps_nobody_from_asking_another() -> None:
    asks = FirstRequests(2)
    assert [asks.may_ask("dead", channel_id) for channel_id in range(4)] == [True, True, False, False]
    assert asks.may_ask("b", 10)
    assert asks.may_ask("b", 0), "elected anew: it follows another node"
    assert asks.granted() == [2], "its place at the first is free"
    assert asks.may_ask("c", 3), "also for who waited"
    asks.forget(1)
    assert asks.granted() == []
    assert (asks.asking, asks.waiting) == (4, 0)


def test_nothing_takes_longer_while_few_are_without_contact() -> None:
    asks = FirstRequests(10)
    for channel_id in range(10):
        asks.may_ask("a", channel_id)
    assert asks.paced_ms(100, 5_000) == 100
    for channel_id in range(10, 40):
        asks.may_ask("a", channel_id)
    assert asks.paced_ms(100, 5_000) == 400
    assert asks.paced_ms(100, 250) == 250
    assert asks.paced_ms(500, 250) == 500, "never more often than with few"


@pytest.mark.parametrize("seed", range(20))
def test_no_place_is_lost_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    print("seed", seed)
    asks = FirstRequests(4)
    leader: dict[int, str] = {}
    for _ in range(2_000):
        channel_id = rng.randrange(40)
        match rng.randrange(6):
            case 0 | 1:
                leader[channel_id] = rng.choice("ab")
                asks.may_ask(leader[channel_id], channel_id)
            case 2:
                asks.answered(channel_id)
            case 3:
                asks.in_contact(channel_id)
            case 4:
                asks.forget(channel_id)
            case _:
                granted = asks.granted()
                assert all(asks.may_ask(leader[one], one) for one in granted)
                if asks.waiting:
                    assert asks.asking >= 4, "a place is free, and somebody waits"
        assert asks.asking <= 8
    for channel_id in range(40):
        asks.forget(channel_id)
    assert (asks.asking, asks.waiting, asks.apart) == (0, 0, 0)
    assert [asks.may_ask("a", channel_id) for channel_id in range(5)] == [True] * 4 + [False]
