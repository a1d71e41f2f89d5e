"""The feed: order, limits, and that no reader holds up another."""

from __future__ import annotations

import asyncio

from tests.http.parties import columns
from tidelog.http.feed import DeviceNews, Dropped, FeedBlock, FrameFeed
from tidelog.nmea.devices import Device, DeviceChange

DEVICE = Device(source=7, first_seen_us=0, last_seen_us=0)


def publish(feed: FrameFeed, numbers: range) -> None:
    feed.publish(numbers.start, columns(numbers))


def test_a_reader_sees_blocks_in_their_order_from_when_it_came() -> None:
    feed = FrameFeed()
    publish(feed, range(1, 5))
    with feed.subscribe() as reader:
        publish(feed, range(5, 8))
        feed.publish_devices([DeviceChange(source=7, device=DEVICE)])
        publish(feed, range(8, 9))
        first, news, second = reader.take_nowait(), reader.take_nowait(), reader.take_nowait()
        assert isinstance(first, FeedBlock)
        assert isinstance(news, DeviceNews)
        assert isinstance(second, FeedBlock)
        assert (first.base_seq, len(first), second.base_seq) == (5, 3, 8)
        assert reader.take_nowait() is None
    assert feed.readers == 0


def test_a_slow_reader_loses_the_oldest_and_is_told_where() -> None:
    feed = FrameFeed()
    with feed.subscribe(blocks_max=2) as slow, feed.subscribe() as quick:
        for start in range(1, 51, 10):
            publish(feed, range(start, start + 10))
        lost = slow.take_nowait()
        assert lost == Dropped(frames=30, devices=0)
        assert lost.events() == b": dropped 30 frames\n\n"
        kept = [slow.take_nowait(), slow.take_nowait(), slow.take_nowait()]
        assert [item.base_seq for item in kept if isinstance(item, FeedBlock)] == [31, 41]
        assert kept[2] is None
        # Told once, and nobody else lost anything.
        publish(feed, range(51, 52))
        assert isinstance(slow.take_nowait(), FeedBlock)
        assert len([item for item in iter(quick.take_nowait, None) if isinstance(item, FeedBlock)]) == 6
    assert feed.frames_dropped == 30


def test_frames_count_towards_the_limit_and_one_block_may_be_over_it() -> None:
    feed = FrameFeed()
    with feed.subscribe(frames_max=15) as reader:
        publish(feed, range(1, 11))
        publish(feed, range(11, 21))
        assert reader.take_nowait() == Dropped(frames=10, devices=0)
        assert isinstance(reader.take_nowait(), FeedBlock)
        publish(feed, range(21, 41))
        assert reader.take_nowait() == Dropped(frames=20, devices=0)
        assert reader.take_nowait() is None


def test_lost_changes_of_devices_are_told_too() -> None:
    feed = FrameFeed()
    with feed.subscribe(blocks_max=1) as reader:
        feed.publish_devices([DeviceChange(source=source, device=None) for source in (1, 2, 3)])
        lost = reader.take_nowait()
        assert lost == Dropped(frames=0, devices=2)
        assert lost.events() == b": dropped 2 changes of devices, ask for /devices\n\n"


def test_text_is_made_once_for_all_readers() -> None:
    feed = FrameFeed()
    with feed.subscribe() as one, feed.subscribe() as other:
        publish(feed, range(100, 200))
        first, second = one.take_nowait(), other.take_nowait()
        assert isinstance(first, FeedBlock)
        assert isinstance(second, FeedBlock)
        assert first.events() is second.events()


def test_device_events_have_the_clients_shape() -> None:
    shown = DeviceNews(DeviceChange(source=7, device=DEVICE)).events()
    assert shown.startswith(b'data: {"type":"device","src":7,"name":"0000000000000000"')
    assert DeviceNews(DeviceChange(source=7, device=None)).events() == b'data: {"type":"device_removed","src":7}\n\n'


async def test_waiting_ends_with_news_with_time_and_with_the_feed() -> None:
    feed = FrameFeed()
    with feed.subscribe() as reader:
        assert await reader.wait_item(0.01) is None
        waiting = asyncio.ensure_future(reader.wait_item(30))
        await asyncio.sleep(0)
        publish(feed, range(1, 2))
        assert isinstance(await waiting, FeedBlock)
        publish(feed, range(2, 3))
        feed.close()
        # What waits can still be taken.
        assert isinstance(await reader.wait_item(30), FeedBlock)
        assert await reader.wait_item(30) is None
        assert reader.ended
