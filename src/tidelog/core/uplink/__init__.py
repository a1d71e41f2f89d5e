"""The uplink protocol, sans-IO: what a cloud knows of a boat, and how each side decides what to send."""
