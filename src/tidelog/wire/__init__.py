"""Bytes between processes: who is at the other end, and what the two say to each other."""
