"""The block format: how records lie in bytes. Pure; numpy does the loops."""
