"""What a fuzz target is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

AS_IT_IS: Final = b"\0"
RESEALED: Final = b"\1"
"""The first byte: whether checksums are made to fit before the decoder sees the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]
    """Good inputs for the fuzzer to start from."""
