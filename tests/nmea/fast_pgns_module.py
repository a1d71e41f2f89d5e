"""Write src/tidelog/nmea/fast_pgns.py anew from the definitions that decode the messages.

A boat assembles fast packets without the package that has the definitions, so their list is kept in the code:

python -m tests.nmea.fast_pgns_module > src/tidelog/nmea/fast_pgns.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from tidelog.signals.layouts import database, fast_packet_pgns

TOP = '''"""The PGNs that are fast packets by the definitions of canboat {version}.

Written by `python -m tests.nmea.fast_pgns_module`.
"""

from __future__ import annotations

from typing import Final

RUNS: Final = (
{lines}
)  # fmt: skip
"""First and last PGN of each run, in order."""
'''
COLUMNS = 116


def runs(pgns: Iterable[int]) -> Iterator[tuple[int, int]]:
    ordered = sorted(pgns)
    first = last = ordered[0]
    for pgn in ordered[1:]:
        if pgn != last + 1:
            yield first, last
            first = pgn
        last = pgn
    yield first, last


def module() -> str:
    lines, line = [], ""
    for first, last in runs(fast_packet_pgns()):
        if len(line) > COLUMNS - len(f"({first}, {last}), "):
            lines.append(line)
            line = ""
        line += f"{' ' if line else '    '}({first}, {last}),"
    return TOP.format(version=database().version, lines="\n".join([*lines, line]))


if __name__ == "__main__":
    sys.stdout.write(module())
