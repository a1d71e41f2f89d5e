"""Doors: other systems' protocols, spoken by a node for their clients."""
