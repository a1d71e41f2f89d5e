"""A node that believes its links to have a given peak: for measuring that the budget of catch-up is kept.

    python -m benchmarks.kits.peaked_node 20000000 node -id n1 ...

Everything else is the `tidelog` command as it is. Links on one machine show whatever its processors have to spare, so
what a fraction of their peak is could not be told beforehand.
"""

from __future__ import annotations

import runpy
import sys

from tidelog.cluster.node.channels import NodeChannels


def believe(peak_bytes_per_s: int) -> None:
    """From now on every node of this process does."""
    setattr(NodeChannels, "_peak_of", lambda _, peer: peak_bytes_per_s)  # noqa: B010 - a method is replaced on purpose


if __name__ == "__main__":
    believe(int(sys.argv.pop(1)))
    runpy.run_module("tidelog.cli", run_name="__main__")
