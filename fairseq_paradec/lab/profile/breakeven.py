"""``profile breakeven``: from how many tokens a pass drafting pays; with a beam, how many steps."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import torch
from fairseq.data import LanguagePairDataset

from ...config import flag
from ...decoding.depth import Costs, Depths, steps_kept
from ...decoding.provenance import NATIVE
from ...engine.native.library import halves
from ...errors import excludes, needs, option_error
from ...model_checks import has_heads
from ...plugin.tasks.loading import decoder as build
from ...registry import HEADS, METHODS
from ...variants import Offer
from ..analysis.break_even import (
    MEASURED,
    OWN,
    PAYS,
    PREDICTED,
    SPEED_UP,
    Mark,
    Point,
    at,
    pays_from,
)
from ..data.journal import Journal
from ..data.samples import Rounds
from ..data.table import Cells, Column, Table, Value, column
from ..measure import rounds
from ..measure.loading import choose
from ..measure.traits import drafting as drafting_methods
from .asked import BreakEven
from .harness import in_rounds, speed_up
from .oracle import give_oracle, with_errors
from .passes.models import Pair, check_model, make_pair, parse_engine, sizes

GREEDY, SHORTLIST, DTYPE = "greedy", "drafter_shortlist", "drafter_dtype"
# Random weights: lengths of sources, with </s>; an output has as many tokens as its source.
SHORTEST, LONGEST = 8, 24
# Of these lengths, 0.97 times is one less before </s>, rounded down.
FORCED = {"max_len_a": 0.97, "max_len_b": 0}

Curve = tuple[str, str, int]

#: Columns, of greedy search and of beams: a draft's size, what a pass writes, times.
GREEDY_COLUMNS = (
    column("block_size"),
    column("tokens_a_pass"),
    column("ms_a_sentence"),
    column("greedy_ms", "greedy's ms", "ms"),
)
BEAM_COLUMNS = (
    column("steps_drafted"),
    column("steps_a_pass"),
    column("ms_a_round"),
    column("plain_step_ms", "plain step's ms", "ms"),
)


@dataclass
class Drafting:
    """A decoder in an engine, with drafts of one size that are right at one rate."""

    engine: str  # its name
    decoder: str  # GREEDY, or the name of a decoder that drafts
    block_size: int  # of that; 0 of GREEDY, and with a beam
    # how often a drafted token is right; None: the drafter drafts by itself, or there is none
    rate: float | None
    generator: Any  # decodes a batch
    oracle: list[list[int]]  # see ``give_oracle``
    # by sentence, what its drafters draft, if it is given
    texts: list[list[int]] = field(default_factory=list)
    tokens: int = 0  # of all outputs
    passes: int = 0  # for all outputs

    @property
    def curve(self) -> Curve:
        """What all its rates share: engine, decoder and block size."""
        return self.engine, self.decoder, self.block_size


def make_decoders(pair: Pair, drafters: dict[str, str | None], asked: BreakEven) -> list[Drafting]:
    """Build the generators; those of an engine share its weights.

    Raises:
        UsageError: no decoder drafts in these engines, or with a beam one is torch's.
    """
    compared: list[Drafting] = []
    limits = FORCED if asked.arch_size is not None else {}
    for name in asked.engines:
        engine, scorers = parse_engine(name), {}  # type: ignore[var-annotated]
        common: dict[str, Any] = {"engine": engine.kind, "engine_dtype": engine.dtype, **limits}
        if asked.beam is None:
            greedy = build(pair.task, [pair.model], decoding=GREEDY, **common)
            greedy.join(scorers, False)
            compared.append(Drafting(name, GREEDY, 0, None, greedy, []))
        elif engine.kind != NATIVE:
            allowed = "native ones with --beam: torch's searches run in Python, step by step"
            raise option_error("--engines", name, allowed)
        block_sizes = [0] if asked.beam else asked.block_sizes
        for decoder, block_size in product(drafters, block_sizes):
            method = METHODS[decoder]
            words = len(pair.task.target_dictionary)
            fewer = engine.kind == NATIVE and halves()
            offer = Offer(block_size, words, engine.dtype, fewer, pair.model)
            if method.candidates is None or not method.candidates(offer):
                continue
            own = {"decoding": decoder, "drafter_path": drafters[decoder]}
            own |= _draft_options(asked, decoder, block_size)
            generator = build(pair.task, [pair.model], **common, **own)
            if asked.beam is not None:
                compared.append(Drafting(name, decoder, 0, None, generator, []))
                continue
            generator.join(scorers, False)
            generator.pass_by_pass = True  # as the oracle drafts
            oracle = give_oracle(generator)
            own_drafts = [] if asked.path is None else [None]  # those of random weights are wrong
            for rate in [*own_drafts, *asked.rates]:
                compared.append(Drafting(name, decoder, block_size, rate, generator, oracle))
    if all(drafting.decoder == GREEDY for drafting in compared):
        given = ",".join(asked.engines)
        raise option_error("--engines", given, "also others than int8, with self_draft")
    return compared


def _draft_options(asked: BreakEven, decoder: str, block_size: int) -> dict[str, Any]:
    """Return the options of a decoder's drafts."""
    if asked.beam is not None:
        return {"beam": asked.beam, DTYPE: asked.drafter_dtype}
    # Whole drafts, whatever the drafter thinks of them.
    whole: dict[str, Any] = {"block_size": block_size, "draft_confidence": 0.0}
    whole |= {SHORTLIST: asked.drafter_shortlist, DTYPE: asked.drafter_dtype}
    reads = METHODS[decoder].reads
    return {name: value for name, value in whole.items() if name in (*reads, "block_size")}


def find_drafters(pair: Pair, asked: BreakEven) -> dict[str, str | None]:
    """Return ``--drafter-path`` of each decoder to be measured.

    Raises:
        UsageError: there is no drafter for one.
    """
    helpers = {decoder: pair.helper(METHODS[decoder].drafter) for decoder in drafting_methods()}
    there = {decoder: helper for decoder, helper in helpers.items() if helper is not None}
    wanted = list(dict.fromkeys(asked.decoder or there))
    for decoder in wanted:
        if decoder not in there:
            allowed = f"{', '.join(there) or 'none'}, by --path and --drafter-path"
            raise option_error("--decoder", decoder, allowed)
    if asked.arch_size is None:
        own = {None, HEADS} if has_heads([pair.model]) else {None}
        return {d: None if METHODS[d].drafter in own else asked.drafter_path for d in wanted}
    drafters: dict[str, str | None] = dict.fromkeys(wanted)
    for decoder in wanted:
        if METHODS[decoder].drafter is not None:
            drafters[decoder] = path = f"random {decoder}"
            pair.task.drafters.lend(path, there[decoder], pair.model)
    return drafters


def make_samples(pair: Pair, asked: BreakEven) -> list[Any]:
    """Return batches of one sentence, from short to long: of DATA, or random ones."""
    if asked.arch_size is None:
        pair.task.load_dataset(asked.subset)
        dataset = pair.task.dataset(asked.subset)
        numbers = choose(pair.task, asked.subset, [pair.model], asked.sentences)
        return [dataset.collater([dataset[i]]) for i in numbers]
    words = pair.task.source_dictionary
    chance = torch.Generator().manual_seed(1)
    lengths = torch.linspace(SHORTEST, LONGEST, asked.sentences).round().long().tolist()
    sources = [torch.randint(words.nspecial, len(words), (n,), generator=chance) for n in lengths]
    for source in sources:
        source[-1] = words.eos()
    dataset = LanguagePairDataset(sources, lengths, words)
    return [dataset.collater([sentence]) for sentence in dataset]


def row(
    columns: Sequence[Column],
    curve: Curve,
    place: str,
    rate: float | None,
    numbers: Sequence[float | None],
    gain: Value | None,
) -> Cells:
    """Make a row: a place on a curve.

    Args:
        columns: GREEDY_COLUMNS or BEAM_COLUMNS.
        curve: engine, decoder and size of drafts.
        place: what the place is, in words.
        rate: how often drafts are right there; None: it is not measured by a rate.
        numbers: what a pass writes, and two times in milliseconds.
        gain: the speed-up; None: it is outside what was measured.
    """
    rounded = [None if number is None else round(number, 3) for number in numbers]
    engine, decoder, size = curve
    cells: Cells = {"engine": engine, "decoder": decoder, columns[0]: size, "at": place}
    cells["rate"] = rate
    cells |= dict(zip(columns[1:], rounded, strict=True))
    cells[SPEED_UP] = gain
    return cells


def measure(asked: BreakEven, journal: Journal) -> Table:
    """Measure; return the table, and draw the picture.

    Raises:
        UsageError: flags do not go together, or an output is not greedy search's.
    """
    check_model(asked)
    if asked.beam == 1:
        raise option_error("--beam", 1, "2 or more; without it drafts are of greedy search")
    for name in ("drafter_width", "drafter_size", "drafter_layers"):
        if (given := getattr(asked, name)) not in (None, 1) and asked.arch_size is None:
            raise needs(flag(name), given, "--arch-size")
    torch.set_num_threads(asked.threads)
    return (_greedy if asked.beam is None else _beams)(asked, journal)


# ---- greedy search ------------------------------------------------------------------------------


class Bench:
    """Decoders on some sentences; each writes what greedy search writes in its engine.

    Args:
        pair: the models.
        samples: batches of one sentence.
        compared: in each engine greedy search comes first.

    Raises:
        UsageError: an output is not greedy search's.
    """

    def __init__(self, pair: Pair, samples: Sequence[Any], compared: Sequence[Drafting]) -> None:
        self.pair, self.samples = pair, samples
        self.right: dict[str, dict[int, list[int]]] = defaultdict(dict)
        words = range(pair.task.target_dictionary.nspecial, len(pair.task.target_dictionary))
        for drafting in compared:  # untimed: also builds what is built at a first call
            if drafting.rate is not None:
                pairs = self.right[drafting.engine].items()
                drafting.texts = [with_errors(text, drafting.rate, words, i) for i, text in pairs]
            for i in range(len(samples)):
                hypo = self.decode(drafting, i)[1]
                drafting.tokens += len(hypo["tokens"])
                drafting.passes += hypo["steps"]

    def time(self, drafting: Drafting, number: int) -> float:
        """Decode a sentence; return the seconds."""
        return self.decode(drafting, number)[0]

    def decode(self, drafting: Drafting, number: int) -> tuple[float, Any]:
        """Decode a sentence, and compare its output; return seconds and hypothesis."""
        drafting.oracle[:] = drafting.texts[number : number + 1]
        begin = rounds.now()
        (hypos,) = self.pair.task.inference_step(
            drafting.generator, [self.pair.model], self.samples[number]
        )
        seconds, tokens = rounds.now() - begin, hypos[0]["tokens"].tolist()
        if tokens != self.right[drafting.engine].setdefault(number, tokens):
            allowed = (
                f"engines in which {drafting.decoder} writes what greedy search writes; sentence "
                f"{number + 1} differs, as passes over one token and over several round differently"
            )
            raise option_error("--engines", drafting.engine, allowed)
        return seconds, hypos[0]


def greedy_rows(
    compared: Sequence[Drafting], seconds: Sequence[Rounds], marks: Sequence[Mark]
) -> list[Cells]:
    """Make the rows: each curve's break-even, own drafts and marks; then the measured points.

    Args:
        compared: in each engine greedy search comes first.
        seconds: of each, by round and sentence.
        marks: where trained pairs stand.
    """
    baselines: dict[str, Rounds] = {}
    curves: dict[Curve, list[Point]] = {}
    own_drafts: dict[Curve, tuple[float, Cells]] = {}
    measured = []
    for drafting, times in zip(compared, seconds, strict=True):
        if drafting.decoder == GREEDY:
            baselines[drafting.engine] = times
            continue
        greedy = baselines[drafting.engine]
        point = Point.of(drafting.tokens / drafting.passes, speed_up(greedy, times))
        place = OWN if drafting.rate is None else MEASURED
        numbers = point.tokens, _milliseconds(times), _milliseconds(greedy)
        made = row(GREEDY_COLUMNS, drafting.curve, place, drafting.rate, numbers, point.gain)
        if drafting.rate is None:
            own_drafts[drafting.curve] = point.tokens, made
        else:
            curves.setdefault(drafting.curve, []).append(point)
            measured.append(made)
    answers = []
    for curve, points in curves.items():
        words, pays = pays_from(points)
        named = [(mark.name, mark.tokens) for mark in marks if mark.curve == curve[1:]]
        if curve in own_drafts:
            named.append((PREDICTED, own_drafts[curve][0]))
        places: list[tuple[str, float, Point | None]] = [(words, pays.tokens, pays)]
        places += [(name, tokens, at(points, tokens)) for name, tokens in named]
        greedy_ms = _milliseconds(baselines[curve[0]])
        for place, tokens, on_curve in places:
            ms, gain = None, None
            if on_curve is not None:
                ms, gain = greedy_ms / on_curve.speed_up, on_curve.gain
            answers.append(row(GREEDY_COLUMNS, curve, place, None, (tokens, ms, greedy_ms), gain))
        if curve in own_drafts:
            answers.append(own_drafts[curve][1])
    return answers + measured


def _milliseconds(seconds: Rounds) -> float:
    """Return the time of a sentence: the median over rounds of the mean."""
    return 1000 * statistics.median(sum(times) / len(times) for times in seconds)


def _greedy(asked: BreakEven, journal: Journal) -> Table:
    """Measure drafts of greedy search."""
    drafted = max(1, max(asked.block_sizes) - 1)  # blockwise counts the verifier's own token
    kinds = {METHODS[name].drafter for name in asked.decoder or drafting_methods()}
    pair = make_pair(asked, drafted, kinds)
    drafters = find_drafters(pair, asked)
    if asked.drafter_shortlist and all(SHORTLIST not in METHODS[name].reads for name in drafters):
        raise excludes("--drafter-shortlist", asked.drafter_shortlist, " and ".join(drafters))
    for mark in asked.mark or ():
        there = list(product(drafters, asked.block_sizes))
        if mark.curve not in there:
            allowed = ", ".join(f"{decoder}:{size}" for decoder, size in there)
            raise option_error("--mark", f"{mark.decoder}:{mark.block_size}", allowed)
    with torch.inference_mode():
        compared = make_decoders(pair, drafters, asked)
        bench = Bench(pair, make_samples(pair, asked), compared)
        sentences = range(len(bench.samples))
        seconds, others = in_rounds(asked, journal, "sentences", compared, sentences, bench.time)
    notes = _notes_of_greedy(bench, drafters, asked) + [
        f"Medians (lowest-highest) of {asked.rounds} interleaved rounds after a warm-up, batch 1, "
        f"cpu, {asked.threads} thread(s); {others}.",
        "Drafted passes are calls of their own here. `translate` makes many in one native call, "
        "so that drafting pays a little earlier there.",
    ]
    title = asked.title or f"When drafting pays: {asked.name}"
    table = Table.of(greedy_rows(compared, seconds, asked.mark or ()), title, notes)
    if asked.plot is not None:
        from ..show.benchmark_plots import draw_break_even  # matplotlib takes a second to load

        draw_break_even(table, title, asked.plot)
    return table


def _in_words(pair: Pair, kind: str | None, dtype: str | None) -> str:
    """Say what drafts for a method with drafters of a kind, their weights in a dtype."""
    if kind is None:
        return f"the model in {dtype or 'int8 (for int8 in int4)'}"
    return "heads on the model" if kind == HEADS else sizes(pair.helper(kind))


def _notes_of_greedy(bench: Bench, drafters: Iterable[str], asked: BreakEven) -> list[str]:
    """Return what a reader must know to read the numbers right."""
    pair, count = bench.pair, len(bench.samples)
    drawn = []
    for name in drafters:
        words = _in_words(pair, METHODS[name].drafter, asked.drafter_dtype)
        if asked.drafter_shortlist is not None and SHORTLIST in METHODS[name].reads:
            words += f", from the {asked.drafter_shortlist} first tokens"
        drawn.append(f"`{name}`: {words}")
    random = asked.arch_size is not None
    sentences = f"{count} sentences of `{asked.subset}` of {asked.data}, from short to long."
    if random:
        sentences = (
            f"{count} random sources of {SHORTEST} to {LONGEST} tokens, with </s>. An output has "
            "as many: random weights never say </s>, and the length limit ends it."
        )
    lines = [
        f"{asked.name}: {sizes(pair.model)}, vocabulary {len(pair.task.target_dictionary)}. "
        f"Drafters: {'; '.join(drawn)}.",
        sentences,
        "A drafter's passes run and are timed, and its drafts are replaced by greedy search's own "
        "tokens, each right with the rate, in whole blocks (--draft-confidence 0). Verification is "
        "real, and every output is checked: it is greedy search's. Speed-ups are against greedy "
        "search in the same engine and dtype: ratios of a round's total times.",
        "pays from: the tokens a pass from which the speed-up stays at 1 or above. That row, and "
        "marks (where trained pairs stand), are interpolated between measured points; -: outside.",
    ]
    if not random:
        lines.append(f"{OWN}: measured with the drafter as it is; predicted: the curve there.")
    return lines


# ---- beams --------------------------------------------------------------------------------------


def search_costs(pair: Pair, drafting: Drafting, sample: Any) -> Costs:
    """Decode a sentence as at a process's start; return what its searches cost."""
    depths = drafting.generator.depths = Depths(drafting.decoder)
    pair.task.inference_step(drafting.generator, [pair.model], sample)
    costs: Costs = depths.costs[1]
    return costs


def middle(costs: Sequence[Costs]) -> Costs:
    """Return the medians of sentences."""
    few, many = (
        (statistics.median(d for d, _ in some), statistics.median(t for _, t in some))
        for some in ([cost.few for cost in costs], [cost.many for cost in costs])
    )
    return Costs(statistics.median(cost.step for cost in costs), few, many)


def beam_rows(
    asked: BreakEven, compared: Sequence[Drafting], costs: Sequence[Sequence[Costs]]
) -> list[Cells]:
    """Make the rows: of each decoder and depth where it pays, the marks, and the rates.

    Args:
        asked: depths, marks and rates.
        compared: the decoders.
        costs: of each, by round.
    """
    answers: list[Cells] = []
    measured: list[Cells] = []
    for drafting, of_rounds in zip(compared, costs, strict=True):
        for depth in asked.block_sizes:
            times = [cost.rounds(depth) for cost in of_rounds]
            # A round replaces as many plain steps as it takes itself.
            ratios = [time[depth] / time[0] for time in times]
            places: list[tuple[str, float | None, float]]
            places = [(PAYS, None, statistics.median(ratios))]
            places += [
                (mark.name, None, mark.tokens)
                for mark in asked.mark or ()
                if mark.curve == (drafting.decoder, depth)
            ]
            answered = len(places)
            for rate in asked.rates:
                places.append((MEASURED, rate, steps_kept([rate] * depth)[depth]))
            ms = [1000 * statistics.median(time[i] for time in times) for i in (depth, 0)]
            for number, (place, rate_there, steps) in enumerate(places):
                curve = drafting.engine, drafting.decoder, depth
                gain = Value.of([steps / ratio for ratio in ratios])
                made = row(BEAM_COLUMNS, curve, place, rate_there, (steps, *ms), gain)
                (answers if number < answered else measured).append(made)
    return answers + measured


def _beams(asked: BreakEven, journal: Journal) -> Table:
    """Measure what drafted steps of beam search cost."""
    if asked.plot is not None:
        raise excludes("--plot", str(asked.plot), "--beam")
    able = [name for name, method in METHODS.items() if method.beams and method.candidates]
    for decoder in asked.decoder or ():
        if decoder not in able:
            raise option_error("--decoder", decoder, f"{', '.join(able)} with --beam")
    pair = make_pair(asked, 1)
    drafters = {name: path for name, path in find_drafters(pair, asked).items() if name in able}
    with torch.inference_mode():
        compared, samples = make_decoders(pair, drafters, asked), make_samples(pair, asked)
        results, others = in_rounds(
            asked, journal, "sentences", compared, samples, partial(search_costs, pair)
        )
    costs = [
        [middle([Costs(*cost) for cost in of_round]) for of_round in by_round]
        for by_round in results
    ]
    notes = [
        f"{asked.name}: {sizes(pair.model)}, vocabulary {len(pair.task.target_dictionary)}; beam "
        f"{asked.beam}, one sentence at a time, cpu, {asked.threads} thread(s).",
        f"{len(samples)} sentences, each searched without drafts, with short and with long ones, "
        "as at a decoder's first batch: CPU time, the faster of two; medians over sentences and "
        f"{asked.rounds} interleaved rounds; {others}.",
        "A round is the drafter's passes, one a drafted step, and one of the model over all nodes; "
        "over the steps drafted it is a straight line. Speed-up: the round's steps by the plain "
        "search, over the round. The encoder and ends of sentences do not count.",
        "pays from: the steps a pass at which a round takes as long as the plain search. rate: how "
        "often a drafted step is kept, where those before it are.",
    ]
    title = asked.title or f"When drafted beams pay: {asked.name}"
    return Table.of(beam_rows(asked, compared, costs), title, notes)
