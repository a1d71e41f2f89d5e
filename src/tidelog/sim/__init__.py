"""A world with a seed: disks that tear and lie, so that the real code can live through years of faults."""
