"""What runs in the cloud: channels that boats and producers fill. Never imports `edge`."""
