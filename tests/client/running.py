"""Running a test's coroutine: bounded, so that a hang is a failure and not a wait."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from tests.patience import patient

DEADLINE_S = 120


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(patient(DEADLINE_S)):
            await work

    asyncio.run(bounded())
