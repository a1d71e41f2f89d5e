"""Benchmarks as tests: the shape of their answers always, their bars in the slow lane."""
