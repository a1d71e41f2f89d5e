"""Decisions only: no I/O, no clock, no dice. Time and randomness come in as arguments."""
