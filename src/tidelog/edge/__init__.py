"""What runs on a boat."""
