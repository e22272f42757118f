"""A translator that runs for long, and models that come and go: memory and file handles stay.

``PYTHONPATH=tests python tests/translator/test_long_running.py --minutes 60 --loads 1000`` is the
long form of the tests.
"""

import argparse
import gc
import logging
import os
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.commands import DEMO, ROOT, environment

TEXT = (DEMO / "raw" / "demo.en").read_text("utf-8").splitlines()
#: Memory may grow by this share.
GROWTH = 0.02


def state(process: int | str = "self") -> tuple[int, int]:
    """A process's own memory in KiB, and its open files."""
    status = Path(f"/proc/{process}/status").read_text()
    handles = len(os.listdir(f"/proc/{process}/fd"))
    return int(status.split("RssAnon:")[1].split()[0]), handles


def watch(seconds: float, batch: int) -> list[tuple[int, int]]:
    """States of ``paradec translate`` while it translates lines from a pipe; all alike."""
    words = ["translate", "--model", str(DEMO), "--decoding", "self_draft"]
    words += ["--batch-size", str(batch), "--buffer-size", str(batch)]
    command = [sys.executable, "-m", "fairseq_paradec", *words]
    pipe = subprocess.PIPE
    states, seen = [], 0
    with subprocess.Popen(
        command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, env=environment()
    ) as process:
        assert process.stdin is not None and process.stdout is not None

        def feed(stream=process.stdin) -> None:
            end = None
            while end is None or time.monotonic() < end:
                stream.write("\n".join(TEXT) + "\n")
                if seen >= 2 * len(TEXT):  # it has loaded, and had every line
                    end = end or time.monotonic() + seconds
            stream.close()

        feeder = threading.Thread(target=feed, daemon=True)
        feeder.start()
        for line in process.stdout:
            assert line.strip()
            seen += 1
            if seen >= 2 * len(TEXT) and seen % len(TEXT) == 0 and not process.stdin.closed:
                states.append(state(process.pid))
        feeder.join()
        process.wait()
    assert process.returncode == 0 and seen % len(TEXT) == 0
    return states


def load_and_delete(times: int) -> list[tuple[int, int]]:
    """States after each of so many models has been loaded, used and deleted."""
    import fairseq_paradec

    states = []
    for number in range(times):
        model = fairseq_paradec.load(DEMO)
        assert model.translate([TEXT[number % len(TEXT)]], decoding="self_draft")[0]
        del model
        gc.collect()
        states.append(state())
    return states


def check(states: list[tuple[int, int]]) -> str:
    """The states of the last third are those of the middle one; return both."""
    third = len(states) // 3
    assert third >= 2, "too few states"
    before, after = (
        [statistics.median(column) for column in zip(*part)]
        for part in (states[third : 2 * third], states[-third:])
    )
    said = f"{before[0]:.0f} -> {after[0]:.0f} KiB, {before[1]:.0f} -> {after[1]:.0f} files"
    said += f" (first {states[0]}, last {states[-1]})"
    assert after[0] <= before[0] * (1 + GROWTH) and after[1] <= before[1], said
    return said


def test_growth_and_open_files_are_noticed() -> None:
    """A third of a percent with each state, or one file in half of them."""
    check([(100_000, 4)] * 30)
    for grown in (
        [(100_000 + 300 * i, 4) for i in range(30)],
        [(9, 4 + i // 15) for i in range(30)],
    ):
        with pytest.raises(AssertionError, match="->"):
            check(grown)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 64])
def test_a_translator_from_a_pipe_stays_as_large(batch: int) -> None:
    check(watch(20, batch))


@pytest.mark.slow
def test_a_deleted_model_leaves_nothing() -> None:
    check(load_and_delete(30))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=60, help="of two translators, side by side"
    )
    parser.add_argument("--loads", type=int, default=1000)
    args = parser.parse_args()
    logging.disable(logging.INFO)
    if args.minutes:
        with ThreadPoolExecutor() as pool:
            runs = [pool.submit(watch, 60 * args.minutes, size) for size in (1, 64)]
        for size, run in zip((1, 64), runs):
            states = run.result()
            print(f"batch {size}: {len(states) * len(TEXT)} sentences; {check(states)}", flush=True)
    if args.loads:
        print(f"{args.loads} loads: {check(load_and_delete(args.loads))}")
