"""Blocks on a disk: segments, the log, the store of many logs, and how they survive a crash."""
