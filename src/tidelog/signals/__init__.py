"""NMEA 2000 decoded over whole columns: frames to signals, raw captures to messages, clocks and devices.

Knows numpy, pyarrow and the field definitions of the `nmea2000` package, and nothing of Spark.
"""
