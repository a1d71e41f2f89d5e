"""The same three frames in every kind of capture, written by hand."""

from __future__ import annotations

import struct
from pathlib import Path

from tidelog.compat.captures import CaptureReader, Row

NOON_US = 1_782_907_200_000_000
"""2026-07-01 12:00:00."""
ROWS: list[Row] = [
    (NOON_US, 0x09F50B23, bytes.fromhex("01e8030000f4010a")),
    (NOON_US + 250_000, 0x0DF01023, bytes.fromhex("01f09b50c4d5bf19")),  # the system time, by GPS
    (NOON_US + 1_500_000, 0x09F80123, bytes.fromhex("ce2ff11d79cf8afd")),
]

YDWG = """\
12:00:00.000 R 09F50B23 01 E8 03 00 00 F4 01 0A
12:00:00.250 R 0DF01023 01 F0 9B 50 C4 D5 BF 19
12:00:01.500 T 09F80123 CE 2F F1 1D 79 CF 8A FD
"""
N2K_ASCII = """\
A120000.000 23FF2 1F50B 01E8030000F4010A
A120000.250 23FF3 1F010 01F09B50C4D5BF19
A120001.500 23FF2 1F801 CE2FF11D79CF8AFD
"""
IKONVERT = """\
$PDGY,000000,4,,5,482,1,0
!PDGY,128267,2,35,255,77.000,AegDAAD0AQo=
!PDGY,126992,3,35,255,77.250,AfCbUMTVvxk
!PDGY,129025,2,35,255,78.500,zi/xHXnPiv0=
"""
GARMIN = """\
Sequence #,Timestamp,PGN,Name,Manufacturer,Remote Address,Local Address,Priority,Single Frame,Size,Packet
0,486942,128267,"Depth, water",Garmin,35,255,2,1,8,0x01E8030000F4010A
1,487192,126992,System Time,Garmin,35,255,3,1,8,0x01F09B50C4D5BF19
2,488442,129025,Position,Unknown Manufacturer,35,255,2,1,8,0xCE2FF11D79CF8AFD
"""
GARMIN_DATED = """\
Sequence #,Month_Day_Year_Hours_Minutes_Seconds_msTicks,PGN,Processed PGN,Name,Manufacturer,Remote Address,\
Local Address,Priority,Single Frame,Size,Packet
0,7_1_2026_12_0_0_24931000,128267,Processed,Depth,Garmin,35,255,2,1,8,0x01E8030000F4010A
1,7_1_2026_12_0_0_24931250,126992,Processed,System Time,Garmin,35,255,3,1,8,0x01F09B50C4D5BF19
2,7_1_2026_12_0_1_24931500,129025,Processed,Position,Garmin,35,255,2,1,8,0xCE2FF11D79CF8AFD
"""
TRC_1_0 = """\
;##########################################################################
;   boat.trc
     1)       0  9F50B23 8 01 E8 03 00 00 F4 01 0A
     2)     250 0DF01023 8 01 F0 9B 50 C4 D5 BF 19
     3)    1500 09F80123 8 CE 2F F1 1D 79 CF 8A FD
"""
TRC_1_1 = """\
;$FILEVERSION=1.1
;$STARTTIME=46204.5
     1)         0.0  Rx     09F50B23  8  01 E8 03 00 00 F4 01 0A
     2)       250.0  Rx     0DF01023  8  01 F0 9B 50 C4 D5 BF 19
     3)      1500.0  Tx     09F80123  8  CE 2F F1 1D 79 CF 8A FD
"""
TRC_1_3 = """\
;$FILEVERSION=1.3
;$STARTTIME=46204.5
     1)         0.000 1  Rx  09F50B23 -  8  01 E8 03 00 00 F4 01 0A
     2)       250.000 1  Rx  0DF01023 -  8  01 F0 9B 50 C4 D5 BF 19
     3)      1500.000 1  Rx  09F80123 -  8  CE 2F F1 1D 79 CF 8A FD
"""
TRC_2_1 = """\
;$FILEVERSION=2.1
;$STARTTIME=46204.5
;$COLUMNS=N,O,T,B,I,d,R,L,D
      1         0.000 DT  1 09F50B23 Rx -  8    01 E8 03 00 00 F4 01 0A
      2       250.000 DT  1 0DF01023 Rx -  8    01 F0 9B 50 C4 D5 BF 19
      3      1500.000 DT  1 09F80123 Rx -  8    CE 2F F1 1D 79 CF 8A FD
"""
TEXTS = {
    "ydwg": YDWG,
    "n2k-ascii": N2K_ASCII,
    "ikonvert": IKONVERT,
    "garmin": GARMIN,
    "garmin with dates": GARMIN_DATED,
    "trc 1.0": TRC_1_0,
    "trc 1.1": TRC_1_1,
    "trc 1.3": TRC_1_3,
    "trc 2.1": TRC_2_1,
}


def socketcan(can_id: int, payload: bytes, flags: int = 1 << 31) -> bytes:
    return struct.pack(">IBBH", can_id | flags, len(payload), 0, 0) + payload.ljust(8, b"\0")


def pcap(packets: list[tuple[int, bytes]], *, order: str = "<", link: int = 227, nanoseconds: bool = False) -> bytes:
    magic = 0xA1B23C4D if nanoseconds else 0xA1B2C3D4
    data = struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 65535, link)
    for time_us, packet in packets:
        fraction = time_us % 1_000_000 * (1000 if nanoseconds else 1)
        data += struct.pack(f"{order}IIII", time_us // 1_000_000, fraction, len(packet), len(packet)) + packet
    return data


def block(order: str, kind: int, body: bytes) -> bytes:
    size = 12 + len(body) + -len(body) % 4
    return struct.pack(f"{order}II", kind, size) + body + b"\0" * (-len(body) % 4) + struct.pack(f"{order}I", size)


def pcapng(packets: list[tuple[int, bytes]], *, order: str = "<", resolution: int = 9) -> bytes:
    """An interface that is no CAN bus comes first, and sends a packet too."""
    data = block(order, 0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1))
    data += block(order, 1, struct.pack(f"{order}HHI", 1, 0, 0))
    options = struct.pack(f"{order}HHBxxx", 9, 1, resolution) + struct.pack(f"{order}HH", 0, 0)
    data += block(order, 1, struct.pack(f"{order}HHI", 227, 0, 0) + options)
    for number, (time_us, packet) in enumerate([(0, b"ether"), *packets]):
        ticks = time_us * 10**resolution // 1_000_000
        head = struct.pack(f"{order}IIIII", min(number, 1), ticks >> 32, ticks & 0xFFFFFFFF, len(packet), len(packet))
        data += block(order, 6, head + packet)
    return data


def tag(number: int, data: bytes) -> bytes:
    return b"\x1b\x01" + (bytes([number]) + data).replace(b"\x1b", b"\x1b\x1b") + b"\x1b\x0a"


def tag_time(time_us: int) -> bytes:
    return tag(3, ((time_us + 11_644_473_600_000_000) * 10).to_bytes(8, "little"))


def framed(data: bytes) -> bytes:
    """A message of the stream, with its sum."""
    whole = data + bytes([-sum(data) & 0xFF])
    return (b"\x10\x02" + whole.replace(b"\x10", b"\x10\x10") + b"\x10\x03").replace(b"\x1b", b"\x1b\x1b")


def bst_93(can_id: int, payload: bytes) -> bytes:
    pgn = (can_id >> 8) & 0x3FFFF
    body = bytes([can_id >> 26]) + pgn.to_bytes(3, "little") + bytes([255, can_id & 0xFF]) + b"\0" * 4
    return bytes([0x93, 11 + len(payload)]) + body + bytes([len(payload)]) + payload


def bst_d0(can_id: int, payload: bytes) -> bytes:
    pages = (can_id >> 26) << 2 | can_id >> 24 & 3
    head = bytes([255, can_id & 0xFF, can_id >> 8 & 0xFF, can_id >> 16 & 0xFF, pages, 0]) + b"\0" * 4
    return b"\xd0" + (3 + len(head) + len(payload)).to_bytes(2, "little") + head + payload


def bst_95(can_id: int, payload: bytes, counter: int) -> bytes:
    return bytes([0x95, 6 + len(payload)]) + struct.pack("<HI", counter & 0xFFFF, can_id) + payload


def ebl_of_a_gateway() -> bytes:
    parts = [tag(1, b"\xea\3\0\0"), framed(b"\xa0\x01\x11")]  # a version, and the gateway about itself
    makers = (bst_93, bst_d0, bst_93)
    for (time_us, can_id, payload), make in zip(ROWS, makers, strict=True):
        parts += [tag_time(time_us), framed(make(can_id, payload))]
    return b"".join(parts)


def ebl_of_a_logger() -> bytes:
    """As a W2K-1 writes it: one time, and a counter that passes its end."""
    frames = [
        tag(7, bst_95(can_id, payload, 65_000 + (time_us - NOON_US) // 1000)) for time_us, can_id, payload in ROWS
    ]
    return tag_time(NOON_US) + b"".join(frames)


PACKETS = [(time_us, socketcan(can_id, payload)) for time_us, can_id, payload in ROWS]
COOKED = [(time_us, b"\0" * 14 + b"\0\x0c" + packet) for time_us, packet in PACKETS]
COOKED_2 = [(time_us, b"\0\x0c" + b"\0" * 18 + packet) for time_us, packet in PACKETS]
BINARIES = {
    "pcap": pcap(PACKETS),
    "pcap big-endian": pcap(PACKETS, order=">"),
    "pcap nanoseconds": pcap(PACKETS, nanoseconds=True),
    "pcap of all interfaces": pcap(COOKED, link=113),
    "pcap of all interfaces, newer": pcap(COOKED_2, link=276),
    "pcapng": pcapng(PACKETS),
    "pcapng big-endian": pcapng(PACKETS, order=">", resolution=6),
    "ebl": ebl_of_a_gateway(),
    "ebl of a logger": ebl_of_a_logger(),
}
ALL = {name: text.encode() for name, text in TEXTS.items()} | BINARIES


def kind_of(name: str) -> str:
    kind = name.split()[0]
    return "pcap" if kind == "pcapng" else kind


def rows_of(reader: CaptureReader) -> list[Row]:
    return [row for chunk in reader for row in chunk.rows()]


def written(tmp_path: Path, data: bytes | str) -> Path:
    path = tmp_path / "capture"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path
