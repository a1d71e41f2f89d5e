"""Tests of what travels between processes."""
