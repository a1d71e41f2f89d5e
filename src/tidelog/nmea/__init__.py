"""NMEA 2000 as frames say it: parameter groups, long messages in pieces, and the devices behind the addresses."""
