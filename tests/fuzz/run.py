"""Coverage-guided fuzzing of everything that reads foreign bytes: `python -m tests.fuzz.run --seconds 60`.

Each target runs in a process of its own, because libFuzzer ends its own process, with a bound
on its time, its memory and the time of any one input. What it finds is printed as hex, ready to become
a test; `--input HEX` runs it again without the fuzzer.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
RSS_MB_MAX = 1024
"""Python, numpy, pyarrow and the fuzzer's own tables take about 300 of it."""
INPUT_SECONDS_MAX = 10
INPUT_BYTES_MAX = 8192
START_SECONDS_MAX = 120
"""Instrumenting the imports takes a while on a busy machine."""


def fuzz(name: str, *, seconds: int, runs: int = -1, seed: int = 0) -> str:
    """Fuzz one target; what went wrong, or an empty string."""
    with tempfile.TemporaryDirectory(prefix="tidelog-fuzz-") as folder:
        corpus, found = Path(folder, "corpus"), Path(folder, "found")
        corpus.mkdir()
        found.mkdir()
        options = [
            f"-max_total_time={seconds}",
            f"-runs={runs}",
            f"-seed={seed}",
            f"-rss_limit_mb={RSS_MB_MAX}",
            f"-timeout={INPUT_SECONDS_MAX}",
            f"-max_len={INPUT_BYTES_MAX}",
            f"-artifact_prefix={found}/",
            "-print_final_stats=1",
        ]
        command = [sys.executable, "-m", "tests.fuzz.run", "--child", name, "--corpus", str(corpus), "--", *options]
        limit = seconds + INPUT_SECONDS_MAX + START_SECONDS_MAX
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", timeout=limit)
        except subprocess.TimeoutExpired:
            return f"{name} did not end within {limit} s (seed {seed})"
        if done.returncode == 0:
            return "" if "stat::number_of_executed_units" in done.stderr else f"{name} ran nothing:\n{done.stderr}"
        inputs = "\n".join(f"{path.name}: {path.read_bytes().hex()}" for path in sorted(found.iterdir()))
        return f"{name} failed (seed {seed}):\n{done.stdout[-4000:]}{done.stderr[-6000:]}\n{inputs}"


def be_fuzzed(name: str, corpus: str, options: list[str]) -> None:
    """Run libFuzzer over one target in this process; never returns."""
    import atheris

    with atheris.instrument_imports(include=["tidelog"]):
        from tests.fuzz.targets import PLANTED, TARGETS

    target = (TARGETS | PLANTED)[name]
    for number, seed in enumerate(target.seeds()):
        Path(corpus, f"seed-{number}").write_bytes(seed)
    atheris.Setup([sys.argv[0], *options, corpus], target.run)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=60, help="how long to fuzz each target")
    parser.add_argument("--target", help="only this one")
    parser.add_argument("--seed", type=int, default=0, help="0: a new one each time")
    parser.add_argument("--input", metavar="HEX", help="run one input through --target and stop")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--corpus", help=argparse.SUPPRESS)
    parser.add_argument("options", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        be_fuzzed(arguments.child, arguments.corpus, arguments.options)
    from tests.fuzz.targets import TARGETS

    if arguments.target and arguments.target not in TARGETS:
        parser.error(f"there is no target {arguments.target}; there are {', '.join(TARGETS)}")
    if arguments.input is not None:
        if not arguments.target:
            parser.error("--input needs --target")
        TARGETS[arguments.target].run(bytes.fromhex(arguments.input))
        return 0
    failures = 0
    for name in [arguments.target] if arguments.target else TARGETS:
        problem = fuzz(name, seconds=arguments.seconds, seed=arguments.seed)
        print(problem or f"{name}: {arguments.seconds} s, nothing found", flush=True)
        failures += bool(problem)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
