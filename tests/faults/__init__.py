"""A disk that fails on demand, under processes as they are."""
