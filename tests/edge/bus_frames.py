"""Plain encoders for the tests: a message to its CAN frames. Written from the rules, not from the code."""

from __future__ import annotations

from pathlib import Path

import pytest

Row = tuple[int, int, bytes]


def can_id(pgn: int, source: int, *, priority: int = 3, destination: int = 255) -> int:
    if (pgn >> 8) % 256 < 240:
        pgn += destination
    return priority * 2**26 + pgn * 2**8 + source


def fast_packet(payload: bytes, sequence: int) -> list[bytes]:
    """The frames of one fast packet, the last one padded."""
    frames = [bytes([sequence * 32, len(payload)]) + payload[:6]]
    rest = payload[6:]
    while rest:
        frames.append(bytes([sequence * 32 + len(frames)]) + rest[:7])
        rest = rest[7:]
    return [frame.ljust(8, b"\xff") for frame in frames]


def transport(payload: bytes, pgn: int, source: int, destination: int = 255) -> list[tuple[int, bytes]]:
    """(can_id, payload) of the announcement and data frames."""
    count = (len(payload) + 6) // 7
    kind = 32 if destination == 255 else 16
    control = bytes([kind]) + len(payload).to_bytes(2, "little") + bytes([count, 255]) + pgn.to_bytes(3, "little")
    frames = [(can_id(60416, source, priority=7, destination=destination), control)]
    for number in range(count):
        data = bytes([number + 1]) + payload[7 * number : 7 * number + 7]
        frames.append((can_id(60160, source, priority=7, destination=destination), data.ljust(8, b"\xff")))
    return frames


def capture_path(name: str) -> Path:
    """A real capture, searched upward from the repository; the test is skipped where it is not."""
    for folder in Path(__file__).resolve().parents:
        path = folder / "shared" / "data" / "nmea2000" / name
        if path.exists():
            return path
    pytest.skip(f"the capture {name} is not on this machine (looked for shared/data/nmea2000 above the repository)")
