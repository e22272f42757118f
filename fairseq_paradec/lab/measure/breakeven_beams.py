"""``paradec breakeven --beam``: from how many steps a pass drafted beams pay."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...decoding.depth import Costs, Depths, steps_kept
from ...decoding.provenance import NATIVE
from ...errors import excludes, option_error
from ...plugin.tasks.loading import decoder as build
from ...registry import METHODS
from ...variants import Offer
from ..analysis.break_even import MEASURED, PAYS, SPEED_UP
from ..data import documents
from ..data.table import Cells, Table, Value, column
from ..settings import Made
from ..show.table import markdown
from . import rounds
from .breakeven import FORCED, Settings, find_drafters, make_samples
from .passes.models import Pair, check_model, make_pair, parse_engine, sizes


@dataclass(frozen=True)
class Way:
    """A decoder with a beam in an engine."""

    engine: str  # its name
    decoder: str  # its method
    generator: Any  # decodes a batch; it measures passes at its first


def make_ways(pair: Pair, drafters: dict[str, str | None], args: Settings) -> list[Way]:
    """Build the generators.

    Raises:
        UsageError: an engine is torch's, or no decoder drafts in these engines.
    """
    found = []
    limits = FORCED if args.arch_size is not None else {}
    for name in dict.fromkeys(args.engines):
        engine = parse_engine(name)
        if engine.kind != NATIVE:
            allowed = "native ones with --beam: torch's searches run in Python, step by step"
            raise option_error("--engines", name, allowed)
        for decoder, path in drafters.items():
            candidates = METHODS[decoder].candidates
            offer = Offer(0, len(pair.task.target_dictionary), engine.dtype, pair.model)
            if candidates is None or not candidates(offer):
                continue
            options: dict[str, Any] = {"engine": engine.kind, "engine_dtype": engine.dtype}
            options |= {"decoding": decoder, "drafter_path": path, "beam": args.beam}
            options |= {"drafter_dtype": args.drafter_dtype}
            found.append(Way(name, decoder, build(pair.task, [pair.model], **options, **limits)))
    if not found:
        given = ",".join(args.engines)
        raise option_error("--engines", given, "also others than int8, with self_draft")
    return found


def measure(pair: Pair, way: Way, sample: Any) -> Costs:
    """Decode a sentence as at a process's start; return what its searches cost."""
    depths = way.generator.depths = Depths(way.decoder)
    pair.task.inference_step(way.generator, [pair.model], sample)
    found: Costs = depths.costs[1]
    return found


def middle(found: Sequence[Costs]) -> Costs:
    """Return the medians of sentences."""
    few, many = (
        (statistics.median(d for d, _ in some), statistics.median(t for _, t in some))
        for some in ([one.few for one in found], [one.many for one in found])
    )
    return Costs(statistics.median(one.step for one in found), few, many)


def table(args: Settings, ways: Sequence[Way], found: Sequence[Sequence[Costs]]) -> list[Cells]:
    """Make the rows: of each way and depth where it pays, the marks, and the rates."""
    answers: list[Cells] = []
    measured: list[Cells] = []
    for way, of_rounds in zip(ways, found, strict=True):
        for depth in dict.fromkeys(args.block_sizes):
            costs = [one.rounds(depth) for one in of_rounds]
            ratios = [each[depth] / each[0] for each in costs]
            # A round replaces as many plain steps as it takes itself.
            points: list[tuple[str, float | None, float]] = [
                (PAYS, None, statistics.median(ratios))
            ]
            points += [
                (mark.name, None, mark.tokens)
                for mark in args.marks
                if mark.curve == (way.decoder, depth)
            ]
            answered = len(points)
            for rate in sorted({*args.rates}):
                points.append((MEASURED, rate, steps_kept([rate] * depth)[depth]))
            for number, (words, drafted_rate, steps) in enumerate(points):
                row: Cells = {
                    "engine": way.engine,
                    "decoder": way.decoder,
                    "steps_drafted": depth,
                    "at": words,
                    "rate": drafted_rate,
                    "steps_a_pass": round(steps, 3),
                    "ms_a_round": round(1000 * statistics.median(c[depth] for c in costs), 3),
                    column("plain_step_ms", "plain step's ms", "ms"): round(
                        1000 * statistics.median(c[0] for c in costs), 3
                    ),
                    SPEED_UP: Value.of([steps / one for one in ratios]),
                }
                (answers if number < answered else measured).append(row)
    return answers + measured


def breakeven_beams(args: Settings) -> int:
    """Measure, print the table, and write the file; return the exit status."""
    assert args.beam is not None
    check_model(args)
    if args.plot is not None:
        raise excludes("--plot", str(args.plot), "--beam")
    if args.out is not None:
        documents.check_out(args.out)
    able = [name for name, method in METHODS.items() if method.beams and method.candidates]
    for decoder in args.decoders:
        if decoder not in able:
            raise option_error("--decoder", decoder, f"{', '.join(able)} with --beam")
    torch.set_num_threads(args.threads)
    pair = make_pair(args, 1, args.random_drafter)
    drafters = {name: path for name, path in find_drafters(pair, args).items() if name in able}
    with torch.inference_mode():
        ways, samples = make_ways(pair, drafters, args), make_samples(pair, args)
        found, used = rounds.all_rounds(
            ways,
            samples,
            args.rounds,
            args.busy,
            lambda way, sample: measure(pair, way, sample),
            "sentences",
        )
    by_way = [[middle(one) for one in each] for each in zip(*found, strict=True)]
    rows = table(args, ways, by_way)
    notes = [
        f"{args.name}: {sizes(pair.model)}, vocabulary {len(pair.task.target_dictionary)}; beam "
        f"{args.beam}, one sentence at a time, cpu, {args.threads} thread(s).",
        f"{len(samples)} sentences, each searched without drafts, with short and with long ones, "
        "as at a decoder's first batch: CPU time, the faster of two; medians over sentences and "
        f"{args.rounds} interleaved rounds; {rounds.others_used(used, args.busy)}.",
        "A round is the drafter's passes, one a drafted step, and one of the model over all nodes; "
        "over the steps drafted it is a straight line. Speed-up: the round's steps by the plain "
        "search, over the round. The encoder and ends of sentences do not count.",
        "pays from: the steps a pass at which a round takes as long as the plain search. rate: how "
        "often a drafted step is kept, where those before it are.",
    ]
    title = args.title or f"When drafted beams pay: {args.name}"
    found_table = Table.of(rows, title, notes)
    if args.out is not None:
        documents.save_made(Made(args.argv, args.out, title), found_table)
    print(markdown([found_table]))
    return 0
