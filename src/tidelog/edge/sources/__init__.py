"""Sources of frames: CAN interfaces, recordings, a simulated voyage; and sending to the bus.

Modules:

    replay        Replays files onto the boat
    socketcan     Frames from a CAN interface, by python-can (the extra `can`, loaded only here)
    source        The interface of a source; several sources as one
    transmitting  Putting frames on the bus for HTTP callers
    voyage        A simulated voyage as real NMEA 2000 frames
"""
