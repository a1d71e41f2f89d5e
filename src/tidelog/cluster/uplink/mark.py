"""What makes a channel a boat's: a mark in its placement metadata (UB2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tidelog.core.catalog import Catalog, ChannelConfig, ChannelRecord

BOAT_MARK: Final = ("tidelog.kind", "boat")
"""In a channel's placement metadata."""


def boat_config(config: ChannelConfig, catalog: Catalog) -> ChannelConfig:
    """This config, marked as a boat's, with no more replicas than there are nodes: they could not be."""
    metadata = tuple(sorted({*config.placement_metadata, BOAT_MARK}))
    return replace(config, placement_metadata=metadata, factor=max(1, min(config.factor, len(catalog.nodes()))))


def is_boat(record: ChannelRecord) -> bool:
    return BOAT_MARK in record.config.placement_metadata
