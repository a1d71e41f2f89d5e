"""The native client, against a fake cluster."""
