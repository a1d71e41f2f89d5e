"""NMEA 2000 as frames say it: PGNs, long messages in pieces, who is on the bus.

Modules:

    devices      Who is on the bus
    fast_packet  Whole messages from raw CAN frames
    pgns         What kind of message a PGN is
    transport    ISO 11783 transport
"""
