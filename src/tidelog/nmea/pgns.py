"""Which PGNs are fast packets: whether a frame is a part of a longer message.

A CAN frame does not say that it is a part. NMEA 2000 fixes it for every PGN, so a listener needs
the list: the public PGNs that are sent as fast packets, and the two proprietary ranges that are by
rule. A PGN that is missing here is not lost: its frames pass one by one, as the bus carried them.
"""

from __future__ import annotations

from typing import Final

ISO_ADDRESS_CLAIM: Final = 60928
ISO_TRANSPORT_CONTROL: Final = 60416
ISO_TRANSPORT_DATA: Final = 60160
PRODUCT_INFORMATION: Final = 126996

_FAST_PACKETS: Final = (
    # Network: group functions, PGN lists, alerts, product and configuration information.
    (126208, 126208), (126464, 126464), (126720, 126720), (126983, 126988), (126996, 126996), (126998, 126998),
    # Steering and engines; rapid updates and transmissions are single frames.
    (127233, 127233), (127237, 127237), (127489, 127491), (127494, 127498),
    # Electric power; fluid level (127505) and battery status (127508) lie between and are single frames.
    (127503, 127504), (127506, 127507), (127509, 127514),
    # Distance log, tracked targets, lifts.
    (128275, 128275), (128520, 128520), (128538, 128538),
    # Position, AIS positions, datum, navigation.
    (129029, 129029), (129038, 129041), (129044, 129045), (129284, 129285), (129301, 129302),
    # Satellites; dilution of precision (129539) and the settings between are single frames.
    (129538, 129538), (129540, 129542), (129545, 129545), (129547, 129547), (129549, 129549), (129551, 129551),
    (129556, 129556),
    # AIS messages, DSC calls, radio.
    (129792, 129813),
    # Loran, labels, routes and waypoints.
    (130052, 130054), (130060, 130061), (130064, 130074),
    # Shore stations and buoys, lighting, watermakers, entertainment, direction and speed components.
    (130320, 130325), (130330, 130330), (130561, 130567), (130569, 130574), (130577, 130578), (130580, 130581),
    (130583, 130584), (130586, 130586),
    # Proprietary, by rule.
    (130816, 131071),
)  # fmt: skip
"""First and last PGN of each run, in order."""

FAST_PACKET_PGNS: Final = frozenset(pgn for first, last in _FAST_PACKETS for pgn in range(first, last + 1))


def pgn_of(can_id: int) -> int:
    """The PGN in a 29-bit id. Below PDU format 240 the low byte is a destination and no part of it."""
    pgn = can_id >> 8 & 0x3_FFFF
    return pgn if pgn & 0xFF00 >= 0xF000 else pgn & 0x3_FF00
