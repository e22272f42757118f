"""paradec-modules: where a decoder's time goes, in milliseconds per sentence and module.

Xia et al. 2022, Table 7, for any decoder of this package. Every sentence is decoded alone, warm,
and the decoders take turns sentence by sentence. The clock stands inside the decoder, so a whole is
a little slower here than in ``paradec-benchmark``, which is where speed is claimed from.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ..errors import option_error
from ..measure import documents, loading, machine
from ..measure.systems import FairseqSystem, Models
from . import arguments
from .benchmark import evenly

# Column -> what is timed: the generator's part, and its methods, none of which calls another.
PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "encoder and keys": ("scorer", ("encode",)),
    "drafter's encoder and keys": ("draft_scorer", ("encode", "start")),
    "drafter's decoder": ("draft_scorer", ("fill",)),
    "drafter's vocabulary": ("draft_scorer", ("logits",)),
    "decoder": ("scorer", ("step",)),
    "vocabulary": ("scorer", ("log_probs",)),
}


class Clock:
    """Adds up the seconds spent in the parts of one generator.

    Args:
        generator: of this package; its parts' methods are wrapped.
        device: ``cpu`` or ``cuda``, on which the clock waits for the device.
    """

    def __init__(self, generator: Any, device: str) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.device = device
        self._inside = False
        for column, (part, methods) in PARTS.items():
            owner = getattr(generator, part, None)
            for method in methods if owner is not None else ():
                setattr(owner, method, self._timed(column, getattr(owner, method)))

    def _timed(self, column: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:  # encode calls start, fill calls step: the outer one counts
                return method(*args, **kwargs)
            self._inside, begin = True, self.now()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds[column] += self.now() - begin
                self._inside = False

        return timed

    def now(self) -> float:
        """Return the time when all that was asked of the device is done."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def profile(system: FairseqSystem, clock: Clock, sentence: int) -> dict[str, float]:
    """Decode one sentence; return the seconds in each module, and in all.

    Args:
        system: the decoder.
        clock: on its generator.
        sentence: its number.
    """
    clock.seconds = dict.fromkeys(PARTS, 0.0)
    begin = clock.now()
    system.translate([sentence])
    whole = clock.now() - begin
    return clock.seconds | {"rest": whole - sum(clock.seconds.values()), "all": whole}


def row(
    system: FairseqSystem, rounds: list[dict[str, float]], peak: float | None
) -> dict[str, Any]:
    """Make a row of the table: the median over rounds of the mean per sentence."""
    cells: dict[str, Any] = {"decoder": system.label, "parameters": system.parameters}
    for column in rounds[0]:
        cells[f"{column}, ms"] = round(1000 * statistics.median(r[column] for r in rounds), 2)
    return cells | {"peak MiB": peak}


def main(argv: Sequence[str] | None = None) -> int:
    """Console entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="paradec-modules", description=__doc__)
    add, number = parser.add_argument, arguments.whole_number
    add("data", metavar="DATA", help="fairseq data folder")
    add("--path", required=True, help="checkpoint of the verifier")
    add(
        "--decoder", action="append", required=True, metavar="SPEC",
        help="[LABEL=]DECODING [flags of fairseq-generate], of this package; may be repeated",
    )  # fmt: skip
    add("--subset", default="test", help="(default: test)")
    add("--sentences", type=number, default=200, help="at most so many (default: 200)")
    add("--rounds", type=number, default=5, help="(default: 5)")
    add("--threads", type=number, default=1, help="CPU threads (default: 1)")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="(default: cpu)")
    add("--busy", action="store_true", help="measure though others use the machine; it is noted")
    add("--title", default="Time per module", help="of the table")
    add("--out", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args(argv)
    return arguments.run("paradec-modules", lambda: _run(args, argv))


def _run(args: argparse.Namespace, argv: Sequence[str] | None) -> int:
    """Profile all decoders, and write the table."""
    loading.check_inputs(args.data, args.path)
    torch.set_num_threads(args.threads)
    busy = None if args.busy else machine.wait_until_idle()
    models = Models(args.data, args.subset, "fp32", args.device)
    systems = [FairseqSystem(spec, models, args.path, {}) for spec in args.decoder]
    for system in systems:
        if not hasattr(system.generator, "scorer"):
            raise option_error("--decoder", system.command, "a decoder of this package")
    order = loading.by_length(systems[0].task.dataset(args.subset))
    sentences = evenly(order, args.sentences)
    peaks = [_peak(system, sentences[-1], args.device) for system in systems]  # and a warm-up
    clocks = [Clock(system.generator, args.device) for system in systems]
    rounds: list[list[dict[str, float]]] = [[] for _ in systems]
    work = len(systems) * len(sentences) * args.rounds
    with tqdm(total=work, unit=" sentences") as bar:
        for _ in range(args.rounds):
            sums: list[dict[str, float]] = [{} for _ in systems]
            for sentence in sentences:
                for total, system, clock in zip(sums, systems, clocks, strict=True):
                    for column, seconds in profile(system, clock, sentence).items():
                        total[column] = total.get(column, 0.0) + seconds / len(sentences)
                    bar.update()
            for total, found in zip(sums, rounds, strict=True):
                found.append(total)
    rows = [row(*each) for each in zip(systems, rounds, peaks, strict=True)]
    idle = "not checked (--busy)" if busy is None else f"{busy:.2f} cores in use before"
    notes = [
        f"{len(sentences)} sentences of `{args.subset}`, batch 1, fp32, {args.device}, "
        f"{args.threads} thread(s); medians of {args.rounds} rounds; others: {idle}.",
        "Encoder and keys: with the cross-attention's keys and values. Vocabulary: projection and "
        "softmax. Rest: choosing tokens, the loop, batching, detokenising.",
        "Parameters: a drafter's own copy of a shared encoder not counted. Peak MiB: what decoding "
        "the longest sentence takes beyond what is held before.",
    ]
    documents.save(args.out, args.title, notes, rows, machine.circumstances("modules", argv))
    return 0


def _peak(system: FairseqSystem, sentence: int, device: str) -> float | None:
    """Decode once to warm up, and once for the memory's peak."""
    system.translate([sentence])
    return machine.with_peak_memory(lambda: system.translate([sentence]), device)[1]


if __name__ == "__main__":
    sys.exit(main())
