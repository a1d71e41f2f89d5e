"""Where a boat's frames come from: CAN interfaces, recordings, a simulated voyage; and sending to the bus.

Modules:

    replay        Replays files onto the boat
    socketcan     Frames from a CAN interface, by python-can (the extra `can`, loaded only here)
    source        Where a boat's frames come from
    transmitting  Putting frames on the bus for callers over HTTP: what is asked for, judged before anything is sent
    voyage        A simulated voyage as real NMEA 2000 frames
"""
