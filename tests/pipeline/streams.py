"""Streams that are run until nothing is left, for tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

STREAM_S = 240
_ATTEMPTS = 5


def run_to_end(start: Callable[[], StreamingQuery]) -> list[dict[str, Any]]:
    """Start a query that ends by itself and wait for it; the progress of its batches.

    Spark gives a new Python process ten seconds to call back, and no setting changes that. A machine that is busy with
    other tests may need longer; the query is then started again, as an operator would do it.
    """
    for attempt in range(_ATTEMPTS):
        query = start()
        try:
            assert query.awaitTermination(STREAM_S), "the stream has not ended in time"
            return [json.loads(progress.json) for progress in query.recentProgress]
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error) or attempt == _ATTEMPTS - 1:
                raise
        finally:
            query.stop()
    raise AssertionError("unreachable")
