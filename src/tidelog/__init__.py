"""Tidelog: one replicated log from a boat's bus to a Spark table."""

__version__ = "0.1.0"
