"""Replicated channels: the decisions that need no blocks, no disk and no clock."""
