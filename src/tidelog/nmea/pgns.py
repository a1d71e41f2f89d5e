"""Which PGNs are fast packets: whether a frame is a part of a longer message.

A CAN frame does not say that it is a part. NMEA 2000 fixes it for every PGN, so a listener needs
the list (`fast_pgns`): the public PGNs that are sent as fast packets, and the ranges that are by
rule. A PGN that is missing there is not lost: its frames pass one by one, as the bus carried them,
and are joined before they are decoded if the definitions know it by then.
"""

from __future__ import annotations

from typing import Final

from tidelog.nmea.fast_pgns import RUNS

ISO_ADDRESS_CLAIM: Final = 60928
ISO_TRANSPORT_CONTROL: Final = 60416
ISO_TRANSPORT_DATA: Final = 60160
PRODUCT_INFORMATION: Final = 126996

FAST_PACKET_PGNS: Final = frozenset(pgn for first, last in RUNS for pgn in range(first, last + 1))


def pgn_of(can_id: int) -> int:
    """The PGN in a 29-bit id. Below PDU format 240 the low byte is a destination and no part of it."""
    pgn = can_id >> 8 & 0x3_FFFF
    return pgn if pgn & 0xFF00 >= 0xF000 else pgn & 0x3_FF00
