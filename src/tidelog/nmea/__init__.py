"""NMEA 2000: PGNs, long messages in pieces, the devices on the bus.

Modules:

    devices      The devices on the bus
    fast_packet  Whole messages from raw CAN frames
    fast_pgns    The list of fast packets, written from the definitions
    pgns         Which PGNs are fast packets
    transport    ISO 11783 transport
"""
