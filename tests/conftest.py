"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# Hypothesis' deadline measures the machine's other work, not the code: pytest-timeout bounds every test
# instead. A failure prints the blob that reproduces it.
settings.register_profile("tidelog", deadline=None, print_blob=True)
settings.load_profile("tidelog")
