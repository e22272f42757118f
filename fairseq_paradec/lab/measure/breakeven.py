"""``paradec breakeven``: from how many tokens a pass drafting pays."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch
from fairseq.data import LanguagePairDataset

from ...errors import excludes, needs, option_error
from ...model_checks import has_heads
from ...plugin.tasks.loading import decoder as build
from ...registry import HEADS, METHODS
from ...variants import Offer
from ..analysis.break_even import MEASURED, OWN, PREDICTED, SPEED_UP, Mark, Point, at, pays_from
from ..data import documents
from ..data.samples import Rounds, series, speed_ups
from ..data.table import Cells, Table, Value, column
from ..settings import Made, Timing
from ..show.table import markdown
from . import rounds
from .loading import choose
from .passes.models import (
    Pair,
    RandomDrafter,
    SizedModel,
    check_model,
    make_pair,
    parse_engine,
    sizes,
)
from .told import tell, with_errors
from .traits import drafting

GREEDY, SHORTLIST, DTYPE = "greedy", "drafter_shortlist", "drafter_dtype"
# Random weights: lengths of sources, with </s>; an output has as many tokens as its source.
SHORTEST, LONGEST = 8, 24
# Of these lengths, 0.97 times is one less before </s>, rounded down.
FORCED = {"max_len_a": 0.97, "max_len_b": 0}

Curve = tuple[str, str, int]


@dataclass(frozen=True)
class Settings(SizedModel, Timing):
    """Of ``paradec breakeven``."""

    decoders: Sequence[str]  # those that draft; none: all that have a drafter
    block_sizes: Sequence[int]  # of them
    rates: Sequence[float]  # how often a drafted token is right
    drafter_width: int | None  # of a random drafter; None: the model's
    drafter_layers: int  # of its decoder
    drafter_size: str | None  # instead: a random Transformer of this size; None: a shallow decoder
    drafter_shortlist: int | None  # so many first tokens to draft from; None: all
    drafter_dtype: str | None  # of the drafts' weights; None: the decoders' own default
    marks: Sequence[Mark]  # where trained pairs stand
    subset: str  # of the data
    sentences: int  # how many
    plot: Path | None  # the picture to write; None: none
    argv: Sequence[str]  # the words after ``paradec``
    out: Path | None  # the JSON file to write; None: none
    title: str | None  # of the table; None: made of the model's name
    beam: int | None  # of drafted beams; None: drafts are of greedy search

    @property
    def random_drafter(self) -> RandomDrafter:
        """What drafts token by token for random weights."""
        return RandomDrafter(self.drafter_width, self.drafter_layers, self.drafter_size)


@dataclass
class Way:
    """One way to decode."""

    engine: str  # its name
    decoder: str  # GREEDY, or the name of a decoder that drafts
    block_size: int  # of that; 0 of GREEDY
    # how often a drafted token is right; None: the drafter is not told, or there is none
    rate: float | None
    generator: Any  # decodes a batch
    told: list[list[int]]  # see ``tell``
    # by sentence, what its drafters are told, if they are
    texts: list[list[int]] = field(default_factory=list)
    tokens: int = 0  # of all outputs
    passes: int = 0  # for all outputs

    @property
    def curve(self) -> Curve:
        """What all its rates share: engine, decoder and block size."""
        return self.engine, self.decoder, self.block_size


class Bench:
    """All ways to decode some sentences; each writes what greedy search writes in its engine.

    Args:
        pair: the models.
        samples: batches of one sentence.
        ways: in each engine greedy search comes first.

    Raises:
        UsageError: an output is not greedy search's.
    """

    def __init__(self, pair: Pair, samples: Sequence[Any], ways: Sequence[Way]) -> None:
        self.pair, self.samples = pair, samples
        self.right: dict[str, list[list[int]]] = {}
        words = range(pair.task.target_dictionary.nspecial, len(pair.task.target_dictionary))
        for way in ways:  # untimed: also builds what is built at a first call
            if way.decoder == GREEDY:
                outputs = [self._decode(way, i)[1]["tokens"].tolist() for i in range(len(samples))]
                self.right[way.engine] = outputs
            if way.rate is not None:
                pairs = enumerate(self.right[way.engine])
                way.texts = [with_errors(text, way.rate, words, i) for i, text in pairs]
            for i in range(len(samples)):
                hypo = self._checked(way, i)[1]
                way.tokens += len(hypo["tokens"])
                way.passes += hypo["steps"]

    def time(self, way: Way, number: int) -> float:
        """Decode a sentence; return the seconds."""
        return self._checked(way, number)[0]

    def _checked(self, way: Way, number: int) -> tuple[float, Any]:
        """Decode a sentence, and compare its output; return seconds and hypothesis."""
        seconds, hypo = self._decode(way, number)
        if hypo["tokens"].tolist() != self.right[way.engine][number]:
            allowed = (
                f"engines in which {way.decoder} writes what greedy search writes; sentence "
                f"{number + 1} differs, as passes over one token and over several round differently"
            )
            raise option_error("--engines", way.engine, allowed)
        return seconds, hypo

    def _decode(self, way: Way, number: int) -> tuple[float, Any]:
        """Decode a sentence; return seconds and hypothesis."""
        way.told[:] = way.texts[number : number + 1]
        begin = rounds.now()
        (hypos,) = self.pair.task.inference_step(
            way.generator, [self.pair.model], self.samples[number]
        )
        return rounds.now() - begin, hypos[0]


def make_ways(
    pair: Pair, drafters: dict[str, str | None], args: Settings, limits: dict[str, float]
) -> list[Way]:
    """Build the generators; those of an engine share its weights.

    Raises:
        UsageError: no decoder drafts in these engines.
    """
    ways = []
    for name in dict.fromkeys(args.engines):
        engine, scorers = parse_engine(name), {}  # type: ignore[var-annotated]
        common: dict[str, Any] = {"engine": engine.kind, "engine_dtype": engine.dtype}
        common |= limits
        greedy = build(pair.task, [pair.model], decoding=GREEDY, **common)
        greedy.join(scorers, False)
        ways.append(Way(name, GREEDY, 0, None, greedy, []))
        # Whole drafts, whatever the drafter thinks of them.
        whole: dict[str, Any] = {SHORTLIST: args.drafter_shortlist, "draft_confidence": 0.0}
        whole[DTYPE] = args.drafter_dtype
        for decoder, block_size in product(drafters, dict.fromkeys(args.block_sizes)):
            method = METHODS[decoder]
            words = len(pair.task.target_dictionary)
            offer = Offer(block_size, words, engine.dtype, pair.model)
            if method.candidates is None or not method.candidates(offer):
                continue
            own = {name: value for name, value in whole.items() if name in method.reads}
            own |= {"decoding": decoder, "drafter_path": drafters[decoder]}
            own |= {"block_size": block_size}
            built = build(pair.task, [pair.model], **common | own)
            built.join(scorers, False)
            told = tell(built)
            own_drafts = [] if args.path is None else [None]  # those of random weights are wrong
            for rate in [*own_drafts, *sorted({*args.rates})]:
                ways.append(Way(name, decoder, block_size, rate, built, told))
    if all(way.decoder == GREEDY for way in ways):
        raise option_error(
            "--engines", ",".join(args.engines), "also others than int8, with self_draft"
        )
    return ways


def find_drafters(pair: Pair, args: Settings) -> dict[str, str | None]:
    """Return ``--drafter-path`` of each decoder to be measured.

    Raises:
        UsageError: there is no drafter for one.
    """
    helpers = {decoder: pair.helper(METHODS[decoder].drafter) for decoder in drafting()}
    there = {decoder: helper for decoder, helper in helpers.items() if helper is not None}
    wanted = list(dict.fromkeys(args.decoders or there))
    for decoder in wanted:
        if decoder not in there:
            allowed = f"{', '.join(there) or 'none'}, by --path and --drafter-path"
            raise option_error("--decoder", decoder, allowed)
    if args.arch_size is None:
        own = {None, HEADS} if has_heads([pair.model]) else {None}
        return {d: None if METHODS[d].drafter in own else args.drafter_path for d in wanted}
    drafters: dict[str, str | None] = dict.fromkeys(wanted)
    for decoder in wanted:
        if METHODS[decoder].drafter is not None:
            drafters[decoder] = path = f"random {decoder}"
            pair.task.drafters.lend(path, there[decoder], pair.model)
    return drafters


def make_samples(pair: Pair, args: Settings) -> list[Any]:
    """Return batches of one sentence, from short to long: of DATA, or random ones."""
    if args.arch_size is None:
        pair.task.load_dataset(args.subset)
        dataset = pair.task.dataset(args.subset)
        numbers = choose(pair.task, args.subset, [pair.model], args.sentences)
        return [dataset.collater([dataset[i]]) for i in numbers]
    words = pair.task.source_dictionary
    chance = torch.Generator().manual_seed(1)
    lengths = torch.linspace(SHORTEST, LONGEST, args.sentences).round().long().tolist()
    sources = [torch.randint(words.nspecial, len(words), (n,), generator=chance) for n in lengths]
    for source in sources:
        source[-1] = words.eos()
    dataset = LanguagePairDataset(sources, lengths, words)
    return [dataset.collater([one]) for one in dataset]


def table(ways: Sequence[Way], seconds: Sequence[Rounds], marks: Sequence[Mark]) -> list[Cells]:
    """Make the rows: each curve's break-even, own drafts and marks; then the measured points.

    Args:
        ways: in each engine greedy search comes first.
        seconds: of each way, by round and sentence.
        marks: where trained pairs stand.
    """
    greedy: dict[str, Rounds] = {}
    curves: dict[Curve, list[Point]] = {}
    own_drafts: dict[Curve, Cells] = {}
    tokens_drafted: dict[Curve, float] = {}
    answers, measured = [], []
    samples = [
        one
        for i, (way, times) in enumerate(zip(ways, seconds, strict=True))
        for one in series(GREEDY if way.decoder == GREEDY else str(i), times, kind=way.engine)
    ]
    gains = speed_ups(samples, GREEDY, lambda one: one.kind)
    for i, (way, times) in enumerate(zip(ways, seconds, strict=True)):
        if way.decoder == GREEDY:
            greedy[way.engine] = times
            continue
        point = Point.of(way.tokens / way.passes, gains[str(i), way.engine])
        ms = _milliseconds(times), _milliseconds(greedy[way.engine])
        if way.rate is None:
            tokens_drafted[way.curve] = round(point.tokens, 3)
            own_drafts[way.curve] = _row(way.curve, OWN, None, point.tokens, point, *ms)
            continue
        curves.setdefault(way.curve, []).append(point)
        measured.append(_row(way.curve, MEASURED, way.rate, point.tokens, point, *ms))
    for curve, points in curves.items():
        words, where = pays_from(points)
        found: list[tuple[str, float, Point | None]] = [(words, where.tokens, where)]
        asked = [(one.name, one.tokens) for one in marks if one.curve == curve[1:]]
        if curve in own_drafts:
            asked.insert(0, (PREDICTED, tokens_drafted[curve]))
        found += [(name, tokens, at(points, tokens)) for name, tokens in asked]
        base = _milliseconds(greedy[curve[0]])
        for words, tokens, one in found:
            if words == PREDICTED:
                answers.append(own_drafts[curve])
            ms_there = None if one is None else base / one.speed_up
            answers.append(_row(curve, words, None, tokens, one, ms_there, base))
    return answers + measured


def _milliseconds(seconds: Rounds) -> float:
    """Return the time of a sentence: the median over rounds of the mean."""
    return 1000 * statistics.median(sum(one) / len(one) for one in seconds)


def _row(
    curve: Curve,
    words: str,
    rate: float | None,
    tokens: float,
    point: Point | None,
    ms: float | None,
    greedy_ms: float,
) -> Cells:
    """Make a row."""
    engine, decoder, block_size = curve
    numbers = {
        column("tokens_a_pass"): tokens,
        column("ms_a_sentence"): ms,
        column("greedy_ms", "greedy's ms", "ms"): greedy_ms,
    }
    return {
        "engine": engine,
        "decoder": decoder,
        "block_size": block_size,
        "at": words,
        "rate": rate,
        **{one: None if value is None else round(value, 3) for one, value in numbers.items()},
        SPEED_UP: None if point is None else Value(point.speed_up, point.low, point.high),
    }


def breakeven(args: Settings) -> int:
    """Measure, print the table, and write the file and the picture; return the exit status."""
    check_model(args)
    if args.drafter_width is not None and args.arch_size is None:
        raise needs("--drafter-width", args.drafter_width, "--arch-size")
    if args.drafter_layers != 1 and args.arch_size is None:
        raise needs("--drafter-layers", args.drafter_layers, "--arch-size")
    if args.drafter_size is not None and args.arch_size is None:
        raise needs("--drafter-size", args.drafter_size, "--arch-size")
    if args.out is not None:
        documents.check_out(args.out)
    torch.set_num_threads(args.threads)
    drafted = max(1, max(args.block_sizes) - 1)  # blockwise counts the verifier's own token
    kinds = {METHODS[one].drafter for one in args.decoders or drafting()}
    pair = make_pair(args, drafted, args.random_drafter, kinds)
    drafters = find_drafters(pair, args)
    if args.drafter_shortlist and all(SHORTLIST not in METHODS[one].reads for one in drafters):
        raise excludes("--drafter-shortlist", args.drafter_shortlist, " and ".join(drafters))
    for mark in args.marks:
        there = list(product(drafters, args.block_sizes))
        if mark.curve not in there:
            allowed = ", ".join(f"{decoder}:{size}" for decoder, size in there)
            raise option_error("--mark", f"{mark.decoder}:{mark.block_size}", allowed)
    with torch.inference_mode():
        ways = make_ways(pair, drafters, args, FORCED if args.arch_size is not None else {})
        bench = Bench(pair, make_samples(pair, args), ways)
        found, used = rounds.all_rounds(
            ways, range(len(bench.samples)), args.rounds, args.busy, bench.time, "sentences"
        )
    seconds = list(zip(*found, strict=True))
    notes = _notes(bench, drafters, args) + [
        f"Medians (lowest-highest) of {args.rounds} interleaved rounds after a warm-up, batch 1, "
        f"cpu, {args.threads} thread(s); {rounds.others_used(used, args.busy)}."
    ]
    title = args.title or f"When drafting pays: {args.name}"
    made = Table.of(table(ways, seconds, args.marks), title, notes)
    if args.out is not None:
        documents.save_made(Made(args.argv, args.out, title), made)
    if args.plot is not None:
        from ..show.benchmark_plots import draw_break_even  # matplotlib takes a second to load

        draw_break_even(made, title, args.plot)
    print(markdown([made]))
    return 0


def _in_words(pair: Pair, kind: str | None, dtype: str | None) -> str:
    """Say what drafts for a method with drafters of a kind, their weights in a dtype."""
    if kind is None:
        return f"the model in {dtype or 'int8'}"
    return "heads on the model" if kind == HEADS else sizes(pair.helper(kind))


def _notes(bench: Bench, drafters: Iterable[str], args: Settings) -> list[str]:
    """Return what a reader must know to read the numbers right."""
    pair, count = bench.pair, len(bench.samples)
    drawn = {
        name: f"`{name}`: {_in_words(pair, METHODS[name].drafter, args.drafter_dtype)}"
        for name in drafters
    }
    random = args.arch_size is not None
    sentences = f"{count} sentences of `{args.subset}` of {args.data}, from short to long."
    if random:
        sentences = (
            f"{count} random sources of {SHORTEST} to {LONGEST} tokens, with </s>. An output has "
            "as many: random weights never say </s>, and the length limit ends it."
        )
    if args.drafter_shortlist is not None:
        first = f", from the {args.drafter_shortlist} first tokens"
        drawn |= {one: drawn[one] + first for one in drafters if SHORTLIST in METHODS[one].reads}
    found = [
        f"{args.name}: {sizes(pair.model)}, vocabulary {len(pair.task.target_dictionary)}. "
        f"Drafters: {'; '.join(drawn[one] for one in drafters)}.",
        sentences,
        "A drafter's passes run and are timed, and its drafts are replaced by greedy search's own "
        "tokens, each right with the rate, in whole blocks (--draft-confidence 0). Verification is "
        "real, and every output is checked: it is greedy search's. Speed-ups are against greedy "
        "search in the same engine and dtype: ratios of a round's total times.",
        "pays from: the tokens a pass from which the speed-up stays at 1 or above. That row, and "
        "marks (where trained pairs stand), are interpolated between measured points; -: outside.",
    ]
    if not random:
        found.append(f"{OWN}: measured with the drafter as it is; predicted: the curve there.")
    return found
