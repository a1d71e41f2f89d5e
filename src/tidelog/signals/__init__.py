"""NMEA 2000 messages decoded over whole columns.

Modules:

    buffers     Arrow's binary columns as numpy arrays and back, without a step for a single value
    clocks      Frames with wrong clocks, placed by what is known around them
    columns     Fields of one variant, each read from all of its frames at once
    decode      Whole messages to signals
    devices     The device that sent a frame
    layouts     The layout of the fields of a parameter group, learned from the `nmea2000` package
    payloads    The payloads of many frames side by side
    reassembly  Fast packets of raw captures put together, over whole columns
    rows        The long table
    texts       Texts of one batch
    values      Values whose type only the payload tells
"""
