"""A power cut in the middle of a call: the code under test never gets to handle it.

`DiskFaults.fail_after` lets a call fail, and a failed sync drops what it should have saved. A power cut
is different: the sync simply never returns, and each un-synced write meets its own fate in `crash`.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.sim.disk import SimDisk


class PowerCut(BaseException):
    """The machine is off. Not an `Exception`: nothing that handles errors may handle this."""


class PluggedDisk(SimDisk):
    """A `SimDisk` whose plug can be pulled at a later call. From then on every call raises, until `crash`."""

    cut_after: int | None = None
    """Pull the plug at the n-th call from now; 1 is the next one."""
    cut_in_sync: bool = False
    """Count only syncs: the moment when most is at stake."""
    before_crash: Callable[[], None] | None = None
    """Called when the power goes, before anything is lost."""

    def _step(self, operation: str, path: str, position: int, length: int) -> None:
        if self.cut_after is not None:
            if self.cut_after > 0 and (operation == "sync" or not self.cut_in_sync):
                self.cut_after -= 1
            if self.cut_after == 0:
                raise PowerCut
        # What `SimDisk` does; a call to it would be a tenth of what a world spends here.
        self._recent.append((operation, path, position, length))
        if self.faults.fail_after is not None:
            self._count_down(operation, path)

    def crash(self) -> None:
        self.cut_after = None
        if self.before_crash is not None:
            self.before_crash()
        super().crash()
