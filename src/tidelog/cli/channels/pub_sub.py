"""`tidelog pub` and `tidelog sub`: write to a channel and read from it, by hand and in pipes.

In pipes records are JSON lines, one object each: offset, time_us, key, value, headers, seq; bytes that are no text
stand under `value_base64` and `key_base64` instead. `tidelog sub a | tidelog pub b --format json` copies a channel. On
a terminal `sub` prints lines for people.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from tidelog.cli.channels.commands import reaching

if TYPE_CHECKING:
    from tidelog.cli.reach import Reach
    from tidelog.client import Client, Producer
    from tidelog.client.options import Start
    from tidelog.client.records import AnyRecord

_READ_BYTES: Final = 1 << 16
_READS_AHEAD_MAX: Final = 4
_SHOWN_BYTES: Final = 200


# --- pub -------------------------------------------------------------------------------------------


@click.command()
@click.argument("channel")
@click.argument("values", nargs=-1)
@click.option("--key", help="The key of every record.")
@click.option("--acks", type=click.Choice(["all", "leader", "none"]), default="all", show_default=True)
@click.option("--producer", "producer_name", metavar="NAME", help="A producer's name: it fences the one before.")
@click.option(
    "--format",
    "text_format",
    type=click.Choice(["lines", "json"]),
    default="lines",
    show_default=True,
    help="Of what is read from a pipe: a line is a value, or a JSON object as `tidelog sub` prints it.",
)
@reaching
def pub(
    channel: str,
    values: tuple[str, ...],
    key: str | None,
    acks: str,
    producer_name: str | None,
    text_format: str,
    **reach: Any,
) -> None:
    """Write VALUES to CHANNEL, each a record; without any, one for each line of standard input.

    Done when everything is acknowledged. Exit codes: 0 done; 1 refused, or nobody answered; 2 the call is wrong.
    """
    from tidelog.cli.channels.actions import ask, reach_of

    if not values and sys.stdin.isatty():
        raise click.UsageError("give values, or pipe lines into this command")
    where = reach_of(**reach)

    async def publish(client: Client) -> tuple[int, list[range]]:
        async with client.producer(channel, acks=acks, name=producer_name) as producer:
            given = None if key is None else key.encode()
            if values:
                return await _send_values(producer, values, given)
            return await _send_lines(producer, text_format, given)

    count, offsets = ask(where, publish)
    _report(where, channel, count, offsets)


def _report(where: Reach, channel: str, count: int, offsets: list[range]) -> None:
    from tidelog.cli.output import print_json

    first = offsets[0].start if offsets else None
    last = offsets[-1].stop - 1 if offsets else None
    if where.as_json:
        print_json({"channel": channel, "records": count, "first_offset": first, "last_offset": last})
    elif sys.stdout.isatty():
        where_to = "" if first is None else f", at {first}" if first == last else f", from {first} to {last}"
        print(f"{count} {'record' if count == 1 else 'records'} in {channel}{where_to}")


async def _send_values(producer: Producer, values: Sequence[str], key: bytes | None) -> tuple[int, list[range]]:
    receipts = []
    for value in values:
        data = value.encode(errors="surrogateescape")
        await producer.send_room(len(data))
        receipts.append(producer.send(data, key=key))
    offsets = [await receipt for receipt in receipts]
    return len(offsets), [range(offset, offset + 1) for offset in offsets]


async def _send_lines(producer: Producer, text_format: str, key: bytes | None) -> tuple[int, list[range]]:
    """Everything on standard input; only the first and the last receipt are kept."""
    count = 0
    first = last = None
    number = 0
    async for lines in _stdin_lines():
        for line in lines:
            number += 1
            if text_format == "json":
                record = _record_of(line, number)
            else:
                record = {"value": line}
            if key is not None:
                record["key"] = key
            await producer.send_room(len(record["value"] or b"") + len(record.get("key") or b""))
            last = producer.send(**record)
            first = first or last
            count += 1
        await asyncio.sleep(0)  # what was gathered leaves while the next lines are read
    await producer.flush()
    if first is None or last is None:
        return 0, []
    start, end = await first, await last
    return count, [range(start, start + 1), range(end, end + 1)]


async def _stdin_lines() -> AsyncIterator[list[bytes]]:
    """Whole lines as they arrive, without their ends."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(_READS_AHEAD_MAX)
    descriptor = sys.stdin.fileno()

    def read() -> None:
        data = b"?"
        while data:
            room.acquire()
            data = os.read(descriptor, _READ_BYTES)
            try:
                loop.call_soon_threadsafe(arrived.put_nowait, data)
            except RuntimeError:
                return  # the command is over

    # A thread of its own, without a lock of Python's: it may wait for input for ever, and nobody waits for it.
    threading.Thread(target=read, name="tidelog-stdin", daemon=True).start()
    rest = b""
    while data := await arrived.get():
        room.release()
        *lines, rest = (rest + data).split(b"\n")
        yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


def _record_of(line: bytes, number: int) -> dict[str, Any]:
    """A record as `sub` prints it; offset and seq are the other channel's, and left out."""
    try:
        plain = json.loads(line)
        record: dict[str, Any] = {"value": _bytes_in(plain, "value"), "key": _bytes_in(plain, "key")}
        headers = plain.get("headers") or []
        record["headers"] = [(str(header["name"]), _bytes_in(header, "value") or b"") for header in headers]
        if plain.get("time_us") is not None:
            record["time_us"] = int(plain["time_us"])
        return record
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError, binascii.Error) as error:
        raise click.UsageError(
            f'line {number} is no record ({error}); write it like {{"value": "text", "key": "k"}}'
        ) from error


def _bytes_in(plain: dict[str, Any], name: str) -> bytes | None:
    encoded = plain.get(f"{name}_base64")
    if encoded is not None:
        return base64.b64decode(encoded, validate=True)
    text = plain.get(name)
    if text is None:
        return None
    if not isinstance(text, str):
        raise ValueError(f"{name} is not text")
    return text.encode()


# --- sub -------------------------------------------------------------------------------------------


@click.command()
@click.argument("channel")
@click.option(
    "--from",
    "start",
    metavar="PLACE",
    help="earliest, latest, an offset, or a time (ISO 8601). By default latest, or earliest with --no-follow.",
)
@click.option("--follow/--no-follow", default=True, show_default=True, help="Wait for more at the end.")
@click.option("--count", type=click.IntRange(1), help="End after so many records.")
@click.option("--cursor", metavar="NAME", help="Go on where the cursor of this name stands, and save it.")
@click.option("--nearest", is_flag=True, help="Read from the nearest in-sync replica instead of the leader.")
@click.option("--skip-trimmed", is_flag=True, help="Go on behind records that retention has removed.")
@reaching
def sub(
    channel: str,
    start: str | None,
    follow: bool,
    count: int | None,
    cursor: str | None,
    nearest: bool,
    skip_trimmed: bool,
    **reach: Any,
) -> None:
    """Print the committed records of CHANNEL: JSON lines in a pipe, readable on a terminal.

    Exit codes: 0 at the end; 1 refused, or nobody answered; 2 the call is wrong; 130 interrupted, 143 terminated.
    """
    from tidelog.cli.channels.actions import ask, reach_of

    options = {
        "start": _place(start, follow),
        "follow": follow,
        "cursor": cursor,
        "nearest": nearest,
        "on_trim": "skip" if skip_trimmed else "raise",
    }
    where = reach_of(**reach)
    as_json = where.as_json or not sys.stdout.isatty()

    async def subscribe(client: Client) -> None:
        left = count
        async with client.reader(channel, **options) as reader:
            while left is None or left > 0:
                available = await reader.fill()
                if not available:
                    return
                if left is not None:
                    available = min(available, left)
                    left -= available
                for _ in range(available):
                    print(_line(reader.give(), as_json=as_json))
                sys.stdout.flush()

    ask(where, subscribe)


def _place(text: str | None, follow: bool) -> Start:
    from tidelog.client import Time
    from tidelog.errors import InvalidConfig
    from tidelog.units import parse_time_us

    if text is None:
        return "latest" if follow else "earliest"
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return Time(parse_time_us(text))
    except InvalidConfig as error:
        raise click.UsageError(f"--from {text!r} is neither earliest, latest, an offset nor a time; {error}") from error


def _line(record: AnyRecord, *, as_json: bool) -> str:
    from tidelog.client import Record

    if isinstance(record, Record):
        return json.dumps(_record_json(record), ensure_ascii=False) if as_json else _record_words(record)
    if as_json:
        plain = {"offset": record.offset, "time_us": record.time_us, "seq": record.seq}
        return json.dumps({**plain, "can_id": f"{record.can_id:08x}", "data": record.data.hex()})
    return f"{record.offset:>10}  {_time_words(record.time_us)}  {record.can_id:08X}  {record.data.hex(' ')}"


def _record_json(record: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"offset": record.offset, "time_us": record.time_us}
    plain |= _text_or_base64("key", record.key)
    plain |= _text_or_base64("value", record.value)
    if record.headers:
        plain["headers"] = [{"name": name, **_text_or_base64("value", value)} for name, value in record.headers]
    if record.seq:
        plain["seq"] = record.seq
    return plain


def _text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _record_words(record: Any) -> str:
    parts = [f"{record.offset:>10}", _time_words(record.time_us)]
    if record.key is not None:
        parts.append(f"[{_words(record.key)}]")
    parts.append("(no value)" if record.value is None else _words(record.value))
    parts += [f"{name}={_words(value)}" for name, value in record.headers]
    return "  ".join(parts)


def _words(data: bytes) -> str:
    """Bytes for people: text without anything a terminal would obey, and not too much of it."""
    text = data[:_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    shown = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    return shown if len(data) <= _SHOWN_BYTES else f"{shown}... ({len(data)} bytes)"


def _time_words(time_us: int) -> str:
    from tidelog.units import format_time_us

    return format_time_us(time_us)
