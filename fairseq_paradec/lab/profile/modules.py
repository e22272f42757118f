"""``profile modules``: a decoder's time in milliseconds per sentence and module.

Xia et al. 2022, Table 7.
"""

import statistics

import torch

from ...errors import option_error
from ..data.journal import Journal
from ..data.table import Cells, Column, Table, column
from ..measure import machine
from ..measure.clock import Clock, Parts
from ..measure.systems import FairseqSystem
from .asked import Modules
from .harness import in_rounds, load

# Column -> the timed part of the generator, and its methods; of nested calls the outer one counts.
PARTS: Parts = {
    "encoder and keys": ("scorer", ("encode",)),
    "drafter's encoder and keys": ("draft_scorer", ("encode", "start")),
    "drafter's decoder": ("draft_scorer", ("fill", "step", "write")),
    "drafter's vocabulary": ("projection", ("choose",)),
    "decoder": ("scorer", ("step", "write")),
    "vocabulary": ("scorer", ("choose", "log_probs")),
}


def profile(system: FairseqSystem, clock: Clock, sentence: int) -> dict[str, float]:
    """Decode one sentence; return the seconds of each module and of all."""
    clock.restart()
    begin = clock.now()
    system.translate([sentence])
    whole = clock.now() - begin
    return clock.seconds | {"rest": whole - sum(clock.seconds.values()), "all": whole}


def part_column(part: str) -> Column:
    """Return the column of a module: ``drafter_decoder_ms`` of ``drafter's decoder``."""
    return column(f"{part.replace(chr(39) + 's', '').replace(' ', '_')}_ms", f"{part}, ms", "ms")


def row(system: FairseqSystem, means: list[dict[str, float]], peak: float | None) -> Cells:
    """Make a row of the table: the medians of the rounds' means per sentence."""
    cells: Cells = {"decoder": system.label, "parameters": system.parameters}
    for part in means[0]:
        median = statistics.median(mean[part] for mean in means)
        cells[part_column(part)] = round(1000 * median, 2)
    return cells | {column("peak_MiB", "peak MiB", "MiB"): peak}


def measure(asked: Modules, journal: Journal) -> Table:
    """Profile all decoders; return the table.

    Raises:
        UsageError: a decoder is not of this package.
    """
    torch.set_num_threads(asked.threads)
    systems, sentences = load(asked)
    for system in systems:
        if not hasattr(system.generator, "scorer"):
            raise option_error("--decoder", system.command, "a decoder of this package")
        system.generator.pass_by_pass = True
    peaks = [_peak(system, sentences[-1], asked.device) for system in systems]  # and a warm-up
    clocks = [Clock(system.generator, PARTS, asked.device) for system in systems]
    pairs = list(zip(systems, clocks, strict=True))
    results, others = in_rounds(
        asked, journal, "sentences", pairs, sentences, lambda pair, i: profile(*pair, i)
    )
    rows = [
        row(system, [*map(_mean, by_round)], peak)
        for system, by_round, peak in zip(systems, results, peaks, strict=True)
    ]
    notes = [
        f"{len(sentences)} sentences of `{asked.subset}`, batch 1, fp32, {asked.device}, "
        f"{asked.threads} thread(s); medians of {asked.rounds} rounds; {others}.",
        "Encoder and keys: with the cross-attention's keys and values. Vocabulary: projection and "
        "softmax; a part of the decoder where one native call drafts several tokens. Rest: "
        "choosing tokens, the loop, batching, detokenising. Each pass is a call of its own.",
        "Parameters: without a drafter's own copy of a shared encoder. Peak MiB: peak memory of "
        "decoding the longest sentence, above the memory in use before.",
    ]
    return Table.of(rows, notes=notes)


def _mean(each: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean seconds of a round's sentences."""
    return {name: statistics.fmean(seconds[name] for seconds in each) for name in each[0]}


def _peak(system: FairseqSystem, sentence: int, device: str) -> float | None:
    """Decode once to warm up, and once to measure peak memory."""
    system.translate([sentence])
    return machine.with_peak_memory(lambda: system.translate([sentence]), device)[1]
