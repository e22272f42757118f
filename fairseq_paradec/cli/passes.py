"""paradec-passes: what a pass costs on this machine, and how far that is from what it could cost.

Times the decoder's pass over chunks of several lengths, whole and piece by piece, the encoder, a
drafter's pass, and for comparison whole searches, fairseq's among them; in one engine or several,
in interleaved rounds. Beside them stands the least that each can take: what it reads over the
machine's bandwidth, or what it computes over the machine's peak, both measured in the same rounds.
The model is a checkpoint, or random weights of a known size: a pass takes as long. On the CPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import random
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from torch import Tensor
from tqdm import tqdm

from ..analysis.markdown import markdown
from ..analysis.pass_costs import PLAIN, dtype_of, tables
from ..decoding.engine.block import BlockScorer
from ..decoding.engine.chunk import ChunkScorer
from ..decoding.engine.settings import Engine
from ..errors import option_error
from ..measure import loading, machine
from ..measure.documents import BENCHMARK, PASSES, check_passes, read_document
from ..measure.pieces import (
    NAMES,
    Call,
    decoder_pieces,
    encoder_pieces,
    piece_calls,
    refuse_unknown,
)
from ..measure.systems import CountedModel
from ..methods.registry import BLOCK_NAT
from ..tasks.flags import ParallelTranslationConfig
from ..tasks.translation import ParallelTranslationTask
from . import arguments
from .benchmark import AGAIN

# --arch-size: layers of encoder and of decoder, width, feed-forward width, heads.
SIZES = {"tiny": (4, 128, 256, 4), "base": (6, 512, 2048, 8)}
ENGINE_DTYPES = ("fp32", "bf16", "fp16", "int8")
WARM_UP = 3  # untimed calls before each cell's timed ones
NEW_TOKENS = 5  # of the prefix, in a drafter's pass
SEARCH_TOKENS = 20  # that whole searches are forced to, without </s>
SLOW = 4  # whole searches and large tensors: one repetition for so many of a pass


# ---- models -----------------------------------------------------------------------------------


class Pair(NamedTuple):
    """What is measured.

    Attributes:
        task: with dictionaries.
        model: a Transformer, the verifier.
        drafter: a BlockNatModel, or None.
    """

    task: Any
    model: Any
    drafter: Any


def random_pair(size: str, vocabulary: int) -> Pair:
    """Build a Transformer with random weights, and a drafter as ``block_nat_fast`` makes it.

    Args:
        size: a key of SIZES.
        vocabulary: tokens, fairseq's special ones among them.
    """
    words = Dictionary()
    for number in range(vocabulary - len(words)):
        words.add_symbol(f"w{number}")
    task = ParallelTranslationTask(ParallelTranslationConfig(), words, words)
    layers, width, inner, heads = SIZES[size]
    settings: dict[str, Any] = {"share_all_embeddings": True}
    settings |= {"max_source_positions": 1024, "max_target_positions": 1024}
    for side in ("encoder", "decoder"):
        settings |= {f"{side}_layers": layers, f"{side}_embed_dim": width}
        settings |= {f"{side}_ffn_embed_dim": inner, f"{side}_attention_heads": heads}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        args = argparse.Namespace(**settings)
        model = _build("transformer", args, task)
        drafter_args = argparse.Namespace(
            encoder_from="the verifier",
            encoder_copied=True,
            encoder_settings=dict(vars(args)),
            max_source_positions=1024,
            max_target_positions=1024,
        )
        drafter = _build("block_nat_fast", drafter_args, task)
    drafter.encoder.load_state_dict(model.encoder.state_dict())
    return Pair(task, model, drafter)


def _build(arch: str, args: argparse.Namespace, task: Any) -> Any:
    """Build a model of an architecture for inference."""
    ARCH_CONFIG_REGISTRY[arch](args)
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, task)
    model.make_generation_fast_()
    return model


def load_pair(data: str, path: str, drafter_path: str | None) -> Pair:
    """Load a checkpoint, and a drafter that fits it.

    Raises:
        UsageError: it is an ensemble, or the drafter does not fit.
    """
    models, task = loading.load(data, path)
    if len(models) > 1:
        raise option_error("--path", path, "one checkpoint")
    drafter = None
    if drafter_path is not None:
        drafter = task.drafters.load(drafter_path, BLOCK_NAT, models)
    return Pair(task, models[0], drafter)


def parse_engine(text: str) -> Engine:
    """Read an engine: a dtype, and ``:compile`` behind it if it is to be compiled.

    Raises:
        UsageError: there is none of this name.
    """
    dtype, sign, rest = text.partition(":")
    if dtype not in ENGINE_DTYPES or (sign and rest != "compile"):
        allowed = f"{', '.join(ENGINE_DTYPES)}, or one of them with :compile behind it"
        raise option_error("--engines", text, allowed)
    return Engine(dtype=None if dtype == PLAIN else dtype, compile=bool(sign))


# ---- what is timed ----------------------------------------------------------------------------


class Cell:
    """Calls that are timed in turn, so that each finds the caches as the others leave them.

    Args:
        calls: by name.
        prepare: to be called before every round's repetitions.
        slow: one repetition in place of SLOW.
    """

    def __init__(
        self, calls: Mapping[str, Call], prepare: Call | None = None, slow: bool = False
    ) -> None:
        self.calls, self.prepare, self.slow = dict(calls), prepare, slow
        self.rounds: dict[str, list[list[float]]] = {}

    def once(self) -> dict[str, float]:
        """Run every call; return their seconds."""
        seconds = {}
        for name, call in self.calls.items():
            begin = time.perf_counter()
            call()
            seconds[name] = time.perf_counter() - begin
        return seconds

    def repetitions(self, wanted: int) -> int:
        """Return how often it is timed in a round."""
        return -(-wanted // SLOW) if self.slow else wanted

    def run(self, wanted: int) -> dict[str, list[float]]:
        """Time one round; return the seconds of each call."""
        if self.prepare is not None:
            self.prepare()
        for _ in range(1 if self.slow else WARM_UP):
            self.once()
        found = [self.once() for _ in range(self.repetitions(wanted))]
        return {name: [round(one[name], 8) for one in found] for name in found[0]}

    def keep(self, found: Mapping[str, list[float]]) -> None:
        """Keep a round's seconds."""
        for name, seconds in found.items():
            self.rounds.setdefault(name, []).append(seconds)


class Search(Cell):
    """A whole search, its encoder timed apart; of this package's also what is outside its passes.

    Args:
        task: that runs it.
        generator: the search.
        model: its model.
        sample: a batch.
    """

    def __init__(self, task: Any, generator: Any, model: Any, sample: dict[str, Any]) -> None:
        super().__init__({}, slow=True)
        own = hasattr(generator, "scorer")
        self._seconds = {"encoder": 0.0, "passes": 0.0}
        self._counted: CountedModel | None = None
        if own:
            self._clock(generator.scorer, "encode", "encoder")
            for method in ("step", "log_probs"):
                self._clock(generator.scorer, method, "passes")
        else:
            self._counted = generator.model = CountedModel([model])
            self._clock(self._counted, "forward_encoder", "encoder")
        self._work = lambda: task.inference_step(generator, [model], sample)
        self.passes = 0

    def _clock(self, owner: Any, name: str, part: str) -> None:
        """Let a method of a search's part add up its seconds."""
        method = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self._seconds[part] += time.perf_counter() - begin

        setattr(owner, name, timed)

    def once(self) -> dict[str, float]:
        """Search; return the seconds of the encoder, of the rest, and of the rest's loop."""
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        if self._counted is not None:
            self._counted.passes = 0
        begin = time.perf_counter()
        hypos = self._work()
        whole = time.perf_counter() - begin
        self.passes = hypos[0][0]["steps"] if self._counted is None else self._counted.passes
        seconds = {"encoder": self._seconds["encoder"], "search": whole - self._seconds["encoder"]}
        if self._counted is None:
            seconds["loop"] = seconds["search"] - self._seconds["passes"]
        return seconds


class Plan(NamedTuple):
    """What passes are made of.

    Attributes:
        batch: sentences.
        source: their length.
        cached: target tokens in front of a chunk.
        chunks: lengths of chunks.
        blocks: numbers of masks in a drafter's pass.
        engines: names.
    """

    batch: int
    source: int
    cached: int
    chunks: list[int]
    blocks: list[int]
    engines: list[str]


class Bench:
    """All that is timed, and the document that comes of it.

    Args:
        pair: the models.
        plan: what to time.
        memory: MiB of the large tensor.
        matrix: rows and columns of the matrices for the peaks.

    Raises:
        UsageError: an engine that is none, or a model of other pieces.
    """

    def __init__(self, pair: Pair, plan: Plan, memory: int, matrix: int) -> None:
        refuse_unknown(pair.model)
        self.pair, self.plan = pair, plan
        self.cells: list[Cell] = []
        self.passes: list[tuple[dict[str, Any], Cell]] = []
        self.searches: list[tuple[str, Search]] = []
        self._make_batch()
        engines = {name: parse_engine(name) for name in plan.engines}
        for name, engine in engines.items():
            self._add_engine(name, engine)
        for name, options in (
            ("fairseq beam 5", {"decoding": "beam", "beam": 5}),
            ("fairseq greedy", {"decoding": "beam", "beam": 1}),
            ("greedy", {"decoding": "greedy"}),
        ):
            limits = {"min_len": SEARCH_TOKENS, "max_len_a": 0, "max_len_b": SEARCH_TOKENS}
            generator = loading.generator(pair.task, [pair.model], **options, **limits)
            self.searches.append((name, Search(pair.task, generator, pair.model, self.sample)))
        self._add_machine(memory, matrix)
        self.cells += [cell for _, cell in self.passes] + [cell for _, cell in self.searches]

    def _make_batch(self) -> None:
        """Make random sentences of one length, and random target tokens."""
        plan, words = self.plan, self.pair.task.target_dictionary
        chance = torch.Generator().manual_seed(1)

        def tokens(count: int, size: int) -> Tensor:
            return torch.randint(words.nspecial, size, (plan.batch, count), generator=chance)

        source = tokens(plan.source, len(self.pair.task.source_dictionary))
        source[:, -1] = words.eos()
        lengths = torch.full((plan.batch,), plan.source)
        start = torch.full((plan.batch, 1), words.eos())
        inputs: dict[str, Any] = {
            "src_tokens": source,
            "src_lengths": lengths,
            "prev_output_tokens": start,
        }
        self.sample: dict[str, Any] = {"id": torch.arange(plan.batch), "net_input": inputs}
        self.target = tokens(plan.cached + max(NEW_TOKENS + 1, *plan.chunks), len(words))
        self.target[:, 0] = words.eos()

    # ---- passes ------------------------------------------------------------------------------

    def _add_engine(self, name: str, engine: Engine) -> None:
        """Add the passes of an engine."""
        plan, scorer = self.plan, ChunkScorer(self.pair.model, engine)
        prepare = self._context(scorer)
        prepare()

        def encode() -> None:
            scorer.encode(self.sample["net_input"])

        counts = encoder_pieces(scorer, plan.source)
        self._add("encoder", name, None, counts, Cell({"whole": encode}))
        for width in plan.chunks:
            tokens = self.target[:, plan.cached : plan.cached + width]
            scorer.step(tokens)  # so that there is room in the cache, and in the causal mask
            counts = decoder_pieces(scorer, plan.source, width, plan.cached + width)
            # A compiled pass is not made of pieces.
            calls = {} if engine.compile else piece_calls(scorer, tokens)
            whole = _pass_call(scorer, tokens)
            self._add("decoder", name, width, counts, Cell({"whole": whole} | calls, prepare))
        if self.pair.drafter is not None:
            self._add_drafter(name, engine, scorer, prepare)

    def _context(self, scorer: Any) -> Call:
        """Return what puts a scorer behind ``cached`` tokens."""

        def prepare() -> None:
            scorer.encode(self.sample["net_input"])
            scorer.step(self.target[:, : self.plan.cached])
            scorer.keep([self.plan.cached] * self.plan.batch)

        return prepare

    def _add_drafter(self, name: str, engine: Engine, scorer: Any, encode: Call) -> None:
        """Add the drafting passes of an engine, and what comes before them."""
        plan, shared = self.plan, self.pair.drafter.shares_encoder
        draft = BlockScorer(self.pair.drafter, engine)
        rows = self.target[:, 1:].tolist()  # a drafter needs no start symbol
        cached = [row[: plan.cached] for row in rows]
        prefixes = [row[: plan.cached + NEW_TOKENS] for row in rows]

        def begin() -> None:
            if shared:
                draft.start(scorer.encoder_out)
            else:
                draft.encode(self.sample["net_input"])

        def prepare_for(masks: int) -> Call:
            def prepare() -> None:
                encode()
                begin()
                draft.fill(cached, masks)

            return prepare

        def fill_for(masks: int) -> Call:
            def fill() -> Tensor:
                draft.keep([plan.cached] * plan.batch)
                return draft.projection.logits(draft.fill(prefixes, masks)).argmax(-1)

            return fill

        encode()
        begin()
        counts = encoder_pieces(draft, plan.source, not shared)
        self._add("drafter's encoder", name, None, counts, Cell({"whole": begin}, encode))
        for masks in plan.blocks:
            seen = plan.cached + NEW_TOKENS + masks
            width = NEW_TOKENS + masks if draft.caches_prefix else seen
            counts = decoder_pieces(draft, plan.source, width, seen, masks)
            cell = Cell({"whole": fill_for(masks)}, prepare_for(masks))
            self._add("drafter", name, masks, counts, cell)

    def _add(
        self, part: str, engine: str, chunk: int | None, counts: list[dict[str, Any]], cell: Cell
    ) -> None:
        head = {"part": part, "engine": engine, "chunk": chunk, "pieces": counts}
        self.passes.append((head, cell))

    # ---- the machine ---------------------------------------------------------------------------

    def _add_machine(self, memory: int, matrix: int) -> None:
        """Add reading of tensors, and products of matrices."""
        amounts = {"large": memory * machine.MIB}
        for head, _ in self.passes:
            if head["part"] == "decoder":
                read = sum(piece["bytes"] for piece in head["pieces"])
                amounts.setdefault(dtype_of(head["engine"]), read)
        self.bandwidth: list[tuple[dict[str, Any], Cell]] = []
        for name, amount in amounts.items():
            tensor = torch.ones(-(-amount // 4))
            cell = Cell({"whole": tensor.sum}, slow=name == "large")
            self.bandwidth.append(({"name": name, "bytes": 4 * len(tensor)}, cell))
        self.peak: list[tuple[dict[str, Any], Cell]] = []
        for dtype in dict.fromkeys((*ENGINE_DTYPES[:2], "int8", *map(dtype_of, self.plan.engines))):
            call = product_call(dtype, matrix)
            if call is not None:
                head = {"dtype": dtype, "flops": 2 * matrix**3}
                self.peak.append((head, Cell({"whole": call}, slow=True)))
        self.cells += [cell for _, cell in self.bandwidth + self.peak]

    # ---- rounds --------------------------------------------------------------------------------

    @torch.inference_mode()
    def run(self, rounds: int, repetitions: int, busy: bool) -> float | None:
        """Time everything; return how many cores others used at most, None if not to be known.

        Args:
            rounds: in each, every cell has its turn, in another order each time.
            repetitions: of a pass in a round.
            busy: measure though others use the machine.

        Raises:
            UsageError: the machine is busy.
        """
        found: list[float | None] = []
        with tqdm(total=(rounds + 1) * len(self.cells), unit=" cells") as bar:
            for cell in self.cells:  # untimed: what is built at a first call, or compiled
                cell.run(1)
                bar.update()
            for turn in range(rounds):
                used = self._round(turn, repetitions, busy, bar)
                for _ in range(AGAIN):
                    if busy or (used or 0) <= machine.BUSY_CORES:
                        break
                    bar.total += len(self.cells)
                    used = self._round(turn, repetitions, busy, bar)
                else:
                    machine.refuse_busy(used)
                for cell in self.cells:
                    cell.keep(self._found[cell])
                found.append(used)
        known = [used for used in found if used is not None]
        return round(max(known), 3) if known else None

    def _round(self, turn: int, repetitions: int, busy: bool, bar: Any) -> float | None:
        """Time one round; return how many cores others used."""
        if not busy:
            machine.wait_until_idle()
        self._found: dict[Cell, dict[str, list[float]]] = {}
        others = machine.Others()
        for cell in random.Random(turn).sample(self.cells, len(self.cells)):
            self._found[cell] = cell.run(repetitions)
            bar.update()
        return others.cores()

    def report(self) -> dict[str, Any]:
        """Return what was measured, raw."""
        passes = []
        for head, cell in self.passes:
            pieces = [
                piece | ({"seconds": cell.rounds[piece["name"]]} if len(cell.rounds) > 1 else {})
                for piece in head["pieces"]
            ]
            passes.append(head | {"seconds": cell.rounds["whole"], "pieces": pieces})
        return {
            "bandwidth": [head | {"seconds": c.rounds["whole"]} for head, c in self.bandwidth],
            "peak": [head | {"seconds": cell.rounds["whole"]} for head, cell in self.peak],
            "passes": passes,
            "searches": [
                {
                    "name": name,
                    "passes": cell.passes,
                    "seconds": cell.rounds["search"],
                    "encoder_seconds": cell.rounds["encoder"],
                }
                | ({"loop_seconds": cell.rounds["loop"]} if "loop" in cell.rounds else {})
                for name, cell in self.searches
            ],
        }


def _pass_call(scorer: Any, tokens: Tensor) -> Call:
    """Return a decoder's pass."""
    return lambda: scorer.log_probs(scorer.step(tokens)).argmax(-1)


def product_call(dtype: str, size: int) -> Call | None:
    """Return a product of two square matrices; None if torch has none in this dtype here."""
    left, right = torch.rand(2, size, size)
    if dtype == "int8":
        first, second = ((100 * one).to(torch.int8) for one in (left, right))

        def call() -> object:
            return torch._int_mm(first, second)
    else:
        wanted = next(kind for kind, name in NAMES.items() if name == dtype)
        third, fourth = left.to(wanted), right.to(wanted)

        def call() -> object:
            return third @ fourth

    try:
        call()
    except (RuntimeError, AttributeError):
        return None
    return call


# ---- an estimate ----------------------------------------------------------------------------


def read_acceptance(path: Path, block_size: int) -> dict[str, Any]:
    """Take the passes per sentence of a benchmark's decoders.

    Args:
        path: what ``paradec-benchmark`` wrote.
        block_size: k of a drafter's method whose command does not say it.

    Returns:
        ``file``; ``systems``: ``label``, ``passes`` and ``tokens`` per sentence, ``chunk`` and
        ``masks`` of a pass, ``search`` of fairseq's; ``left_out``: which are not there, and why;
        ``block_size``, and ``assumed``: the labels of those for which it was assumed.

    Raises:
        UsageError: it is no such file.
    """
    document = read_document(path)
    if document["schema"] != BENCHMARK:
        raise option_error("--acceptance", str(path), "a JSON that paradec-benchmark wrote")
    count = document["setting"]["sentences"]
    systems, left_out, assumed = [], [], []
    for system in document["systems"]:
        if system["promise"] == "peer" or system["passes"] is None:
            continue
        if any(f in system["command"].split() for f in ("--engine-dtype", "--compile")):
            continue  # the same passes as without; the engines are those measured here
        needed = what_passes_need(system["command"], block_size)
        if isinstance(needed, str):
            left_out.append(f"`{system['label']}`: {needed}")
            continue
        numbers = {name: system[name] / count for name in ("passes", "tokens")}
        systems.append({"label": system["label"]} | numbers | needed)
        if needed["masks"] is not None and "--block-size" not in system["command"]:
            assumed.append(system["label"])
    return {
        "file": path.name,
        "systems": systems,
        "left_out": left_out,
        "block_size": block_size,
        "assumed": assumed,
    }


def what_passes_need(command: str, block_size: int) -> dict[str, Any] | str:
    """Say what a pass of a decoder consists of, or in words why that is not known.

    Args:
        command: of the benchmark, as in ``gad --drafter-path FILE --block-size 10``.
        block_size: k, where a drafter's method does not say it.
    """
    words = shlex.split(command.replace("=", " "))
    method, flags = words[0], words[1:]
    if "--path" in flags:
        return "another model"
    for name in ("--adaptive-block", "--hybrid-length", "--drafter-shortlist"):
        if name in flags:
            return f"its passes differ ({name})"
    given = int(flags[flags.index("--block-size") + 1]) if "--block-size" in flags else None
    needed: dict[str, Any] = {"chunk": 1, "masks": None, "search": None}
    if method == "greedy":
        return needed
    if method == "beam" and not set(flags) - {"--beam", "1", "5"}:
        greedy = flags == ["--beam", "1"]
        return needed | {"search": "fairseq greedy" if greedy else "fairseq beam 5"}
    if method in ("gad", "gad_pp"):
        masks = given or block_size
        return needed | {"chunk": masks + 1, "masks": masks}
    if method in ("pgj", "hgj") and given is not None:
        return needed | {"chunk": given}
    return "what its passes consist of is not known here"


# ---- the command ----------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Console entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="paradec-passes", description=__doc__)
    add, number, numbers = parser.add_argument, arguments.whole_number, arguments.whole_numbers
    add("data", metavar="DATA", nargs="?", help="fairseq data folder, with --path")
    add("--path", help="checkpoint of a Transformer")
    add("--arch-size", choices=list(SIZES), help="instead of --path: random weights of this size")
    add("--vocabulary", type=number, default=7944, help="with --arch-size (default: 7944)")
    add("--drafter-path", help="with --path: a drafter of it; --arch-size has one of its own")
    add(
        "--engines", default=PLAIN, metavar="LIST",
        help="what passes are computed in, with commas: " + ", ".join(ENGINE_DTYPES)
        + ", each also as, for example, fp32:compile (default: fp32)",
    )  # fmt: skip
    add("--chunks", type=numbers, default=[1, 5, 11, 26], help="tokens (default: 1,5,11,26)")
    add(
        "--block-sizes", type=numbers, default=[10],
        help="masks in a drafter's pass, behind 5 new tokens; the first also for the methods of "
        "--acceptance that do not say theirs (default: 10)",
    )  # fmt: skip
    add("--batch", type=number, default=1, help="sentences (default: 1)")
    add("--source-length", type=number, default=14, help="with </s> (default: 14)")
    add("--cached", type=number, default=10, help="tokens in front of a chunk (default: 10)")
    add("--rounds", type=number, default=5, help="(default: 5)")
    add("--repetitions", type=number, default=20, help="of a pass in a round (default: 20)")
    add("--threads", type=number, default=1, help="CPU threads (default: 1)")
    add("--memory-mib", type=number, default=1024, help="large tensor to be read (default: 1024)")
    add("--matrix", type=number, default=1024, help="size of matrices for peaks (default: 1024)")
    add(
        "--acceptance", type=Path, metavar="FILE",
        help="a benchmark's JSON: estimate sentences from its numbers of passes",
    )  # fmt: skip
    add("--busy", action="store_true", help="measure though others use the machine; it is noted")
    add("--title", help="of the section in RESULTS.md")
    add("--out", type=Path, help="JSON file to write, for paradec-results")
    args = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    try:
        return arguments.run("paradec-passes", lambda: _run(args, argv))
    finally:
        gc.collect()  # searches log a closing line as they go
        logging.disable(logging.NOTSET)


def _check(args: argparse.Namespace) -> None:
    """Refuse flags that do not go together, and files that are not there.

    Raises:
        UsageError: there are some.
    """
    if (args.path is None) == (args.arch_size is None):
        raise option_error("--path", args.path, "one of --path and --arch-size")
    if args.path is not None and args.data is None:
        raise option_error("DATA", None, "a folder made by fairseq-preprocess, with --path")
    if args.path is not None:
        loading.check_inputs(args.data, args.path)
    if args.arch_size is not None and (args.data or args.drafter_path):
        given = args.data or args.drafter_path
        raise option_error("DATA, --drafter-path", given, "none with --arch-size")
    if args.arch_size is not None and args.vocabulary < 5:
        raise option_error("--vocabulary", args.vocabulary, "5 or more: 4 tokens are special ones")
    if args.out is not None and args.out.suffix != ".json":
        raise option_error("--out", str(args.out), "a name that ends in .json")
    if args.acceptance is not None and args.batch > 1:
        raise option_error("--batch", args.batch, "1 with --acceptance: its passes are of batch 1")
    for name in args.engines.split(","):
        parse_engine(name)


def _check_positions(args: argparse.Namespace, pair: Pair) -> None:
    """Refuse passes beyond a model's positions.

    Raises:
        UsageError: there is one.
    """
    source, target = pair.model.max_positions()
    longest = max(args.cached + max(args.chunks), SEARCH_TOKENS + 2)
    if pair.drafter is not None:
        target = min(target, pair.drafter.decoder.max_positions())
        longest = max(longest, args.cached + NEW_TOKENS + max(args.block_sizes))
    if args.source_length > source:
        raise option_error("--source-length", args.source_length, f"at most {source}")
    if longest > target:
        raise option_error(
            "--cached, --chunks, --block-sizes", f"{longest} positions", f"at most {target}"
        )


def _run(args: argparse.Namespace, argv: Sequence[str] | None) -> int:
    """Measure, print the tables and write the file."""
    _check(args)
    acceptance = None
    if args.acceptance is not None:
        acceptance = read_acceptance(args.acceptance, args.block_sizes[0])
    torch.set_num_threads(args.threads)
    if not args.busy:
        machine.wait_until_idle()
    if args.arch_size is not None:
        pair = random_pair(args.arch_size, args.vocabulary)
    else:
        pair = load_pair(args.data, args.path, args.drafter_path)
    _check_positions(args, pair)
    given = (args.chunks, args.block_sizes, args.engines.split(","))
    chunks, blocks, engines = (list(dict.fromkeys(items)) for items in given)
    plan = Plan(args.batch, args.source_length, args.cached, chunks, blocks, engines)
    with torch.inference_mode():
        bench = Bench(pair, plan, args.memory_mib, args.matrix)
        busy = bench.run(args.rounds, args.repetitions, args.busy)
    name = args.path or f"{args.arch_size}, random weights"
    drafter = args.drafter_path or ("none" if pair.drafter is None else "as block_nat_fast")
    setting = {
        "model": name,
        "sizes": _sizes(pair.model),
        "vocabulary": len(pair.task.target_dictionary),
        "drafter": drafter,
        "drafter sizes": "none" if pair.drafter is None else _sizes(pair.drafter),
        "batch": plan.batch,
        "source length": plan.source,
        "cached": plan.cached,
        "chunks": plan.chunks,
        "block sizes": plan.blocks,
        "engines": plan.engines,
        "rounds": args.rounds,
        "repetitions": args.repetitions,
        "threads": args.threads,
        "busy cores": busy,
    }
    document = {
        "schema": PASSES,
        "version": 1,
        "title": args.title or f"Passes of {name}",
        "notes": notes(setting, args.busy),
        **machine.circumstances("passes", argv),
        "setting": setting,
        **bench.report(),
        "acceptance": acceptance,
    }
    document["tables"] = tables(document)
    check_passes(document, str(args.out))
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"
        args.out.write_text(text, encoding="utf-8")
    print("".join(f"- {note}\n" for note in document["notes"]))
    print(markdown(document["tables"]))
    return 0


def _sizes(model: Any) -> str:
    """Describe a model, for example ``4+4 layers, d=128, ffn 256, 4 heads``."""
    encoder, decoder = model.encoder, model.decoder
    first = decoder.layers[0]
    return (
        f"{len(encoder.layers)}+{len(decoder.layers)} layers, d={decoder.embed_dim}, "
        f"ffn {first.fc1.out_features}, {first.self_attn.num_heads} heads"
    )


def notes(setting: Mapping[str, Any], busy: bool) -> list[str]:
    """Return what a reader must know to read the numbers right."""
    idle = "not checked (--busy), " if busy else ""
    used = setting["busy cores"]
    drafter = "" if setting["drafter"] == "none" else f", {setting['drafter sizes']}"
    return [
        f"{setting['model']}: {setting['sizes']}, vocabulary {setting['vocabulary']}. Drafter: "
        f"{setting['drafter']}{drafter}.",
        f"Batch {setting['batch']}, sources of {setting['source length']} tokens, "
        f"{setting['cached']} cached; cpu, {setting['threads']} thread(s). Medians and quartiles "
        f"of {setting['rounds']} interleaved rounds of {setting['repetitions']} after a warm-up; "
        f"others: {idle}{'unknown' if used is None else used} cores at most.",
    ]


if __name__ == "__main__":
    sys.exit(main())
