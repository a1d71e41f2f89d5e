"""Benchmarks. Each prints one flat JSON object whose ratios compare to a floor or a peer of the same run."""
