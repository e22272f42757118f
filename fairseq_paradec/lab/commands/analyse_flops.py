"""FLOPs of decoding, from traces, and of training, from a data set's lengths (santilli2023)."""

import argparse
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ... import registry
from ...cli import arguments
from ...errors import option_error
from ...registry import METHODS
from ..analysis import training_flops
from ..analysis.benchmark_tables import OWN_GREEDY, alone_samples
from ..analysis.decoding_flops import PARTS, Count, Decoded, greedy
from ..analysis.flops import Heads, Shape
from ..analysis.training_flops import Update
from ..data.samples import speed_ups
from ..data.table import Cells, Column, Table, Value, column
from ..measure.traits import traits
from .analyse_speed import MEASURED, TRACED, read_benchmark, read_records
from .flops_files import BLOCK_NAT, BLOCKWISE, TRANSFORMER, Checkpoint, read_checkpoint
from .text_files import each_once, named

COST_NOTE = (
    "FLOP with training: of all decoded sentences, and of training the model and, where it drafts, "
    "the drafter. Speed: of {benchmark}, batch 1, against our greedy search, median of the rounds "
    "(lowest-highest). FLOP / speed: santilli2023 compares methods by it (Tables 3 and 5)."
)
# Drafters that are models, by the registry's kinds.
_KINDS = {registry.TRANSFORMER: TRANSFORMER, registry.BLOCK_NAT: BLOCK_NAT}


# ---- decoding -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Models:
    """The models of the traces."""

    base: Checkpoint  # of ``--path``
    drafter: Checkpoint | None  # of ``--drafter-path``, or None
    beam: int | None  # of ``--beam``, or None

    def decoded(self, record: Mapping[str, Any], path: str) -> Decoded:
        """Return a record with the shapes of what decoded it.

        Raises:
            UsageError: other models made it, or its method is not counted.
        """
        name, shape = record["decoding"], self.base.shape
        counted = [name for name in METHODS if traits(name).flops is not None]
        if name not in counted:
            raise option_error("TRACE", f"{path} by {name}", ", ".join(counted))
        method = METHODS[name]
        if record.get("source") is None:
            raise option_error("TRACE", path, f"{TRACED}, with sources")
        if record["flags"].get("draft_tree") is not None and not traits(name).counts_trees:
            raise option_error("TRACE", f"{path} with --draft-tree", f"{name} without it")
        made_by = f"for {path} by {name}"
        drafts = method.drafts_alone
        if shape is None or (self.base.kind == BLOCK_NAT) != drafts:
            wanted = BLOCK_NAT if drafts else TRANSFORMER
            raise option_error("--path", self.base.kind, f"{wanted}, {made_by}")
        if shape.tokens_per_step > 1 and not method.beam:
            given = f"a model that writes {shape.tokens_per_step} tokens a step"
            raise option_error("--path", given, f"the one {made_by}, which does not")
        if method.beam and self.beam is None:
            raise option_error("--beam", None, f"the beam that {path} was made with")
        drafter: Shape | Heads | None = None
        if method.drafter in _KINDS:
            drafter = self._drafter(_KINDS[method.drafter], shape, made_by)
        elif method.drafter == registry.HEADS:
            drafter = self._heads(shape, made_by)
        return Decoded(record, shape, drafter, self.beam or 1)

    def _drafter(self, kind: str, base: Shape, made_by: str) -> Shape:
        """Return the shape of a drafter of a kind.

        Raises:
            UsageError: there is none, or its vocabulary is not the base's.
        """
        drafter = self.drafter
        if drafter is None or drafter.shape is None or drafter.kind != kind:
            given = None if drafter is None else drafter.kind
            raise option_error("--drafter-path", given, f"{kind}, {made_by}")
        if drafter.shape.vocabulary != base.vocabulary:
            given = f"a drafter with {drafter.shape.vocabulary} target tokens"
            raise option_error("--drafter-path", given, f"{base.vocabulary}, as --path")
        if kind == TRANSFORMER and self._one_encoder:
            return replace(drafter.shape, shares_encoder=True)
        return drafter.shape

    @functools.cached_property
    def _one_encoder(self) -> bool:
        """Whether the drafter's encoder is the base's, so that it does not run."""
        from ...decoding.helper import same_weights

        assert self.drafter is not None
        return same_weights(self.drafter.encoder, self.base.encoder)

    def _heads(self, base: Shape, made_by: str) -> Heads:
        """Return the shape of the heads, the base's own or the drafter's.

        Raises:
            UsageError: there are none, or they read states of another size.
        """
        drafter = self.drafter
        heads = base.heads or (None if drafter is None else drafter.heads)
        if heads is None:
            given = None if drafter is None else drafter.kind
            raise option_error("--drafter-path", given, f"{BLOCKWISE}, {made_by}")
        if heads.dim != base.output:
            given = f"heads on states of {heads.dim}"
            raise option_error("--drafter-path", given, f"{base.output}, as --path")
        return heads


def decoding(args: argparse.Namespace) -> Table:
    """Count the FLOPs of traces."""
    if (args.training_flops or args.drafter_training_flops) and args.benchmark is None:
        raise option_error("--benchmark", None, "a file, with FLOPs of training beside its speeds")
    drafter = args.drafter_path and read_checkpoint("--drafter-path", args.drafter_path)
    models = Models(read_checkpoint("--path", args.path), drafter, args.beam)
    notes = [
        "GFLOP of a sentence, MFLOP of a token of the output (</s> counted): multiply-adds of "
        "matrix products, two operations each, as torch counts them; no embeddings, norms or "
        "softmax. Batch 1, real lengths.",
        "encoder: with keys and values of the source. drafter: the whole drafter, or heads and "
        "their projections. x greedy: over greedy search with --path, for the same outputs.",
    ]
    rows, oracle = [], False
    speed = _speeds(args.benchmark)
    for name, path in named({path: path for path in each_once("TRACE", args.trace)}).items():
        total, plain, sentences, tokens, passes, method = Count(), Count(), 0, 0, 0, ""
        for record in read_records(path):
            decoded = models.decoded(record, path)
            method, length = record["decoding"], len(record["output"])
            count = traits(method).flops
            assert count is not None  # ``decoded`` raises an error otherwise
            total += count(decoded)
            plain += greedy(decoded.shape, decoded.source, length)
            sentences, tokens = sentences + 1, tokens + length
            passes += record["decoder_passes"]
            oracle |= record["flags"].get("jacobi_length") == "oracle"
        row: Cells = {"trace": name, "decoding": method}
        row |= _row(total, plain, sentences, tokens, passes)
        if speed:
            if name not in speed:
                allowed = f"names of the benchmark's decoders with .jsonl: {', '.join(speed)}"
                raise option_error("TRACE", path, allowed)
            drafted = METHODS[method].drafter is not None
            trained = args.training_flops + (args.drafter_training_flops if drafted else 0)
            row |= _cost(total.total(), trained, speed[name])
        rows.append(row)
    if speed:
        notes.append(COST_NOTE.format(benchmark=args.benchmark))
    if oracle:
        notes.append("Oracle lengths come from a greedy search, which is not counted.")
    return Table.of(rows, notes=notes)


def _speeds(benchmark: str | None) -> dict[str, Value]:
    """Return the decoders of a benchmark with their speed-ups over our greedy search, batch 1."""
    if benchmark is None:
        return {}
    document = read_benchmark(benchmark)
    gains = speed_ups(alone_samples(document), OWN_GREEDY)
    return {name: gain for (name, _), gain in gains.items()}


def _flop(key: str, name: str | None = None) -> Column:
    """Return a column of many FLOPs."""
    return column(key, name, "FLOP", ".3e")


def _cost(decoding: float, trained: float, speed: Value) -> Cells:
    """Return FLOPs beside speed: santilli2023, Tables 3 and 5."""
    return {
        _flop("training_FLOP"): trained or None,
        _flop("FLOP_with_training"): decoding + trained,
        column("speed", "speed, x our greedy", "x", ".2f"): speed,
        _flop("FLOP_by_speed", "FLOP / speed"): (decoding + trained) / speed.middle,
    }


def _row(total: Count, plain: Count, sentences: int, tokens: int, passes: int) -> Cells:
    """Return the numbers of one trace."""
    per_pass = column("drafter_MFLOP_per_pass", "drafter, MFLOP per pass", "MFLOP")
    return {
        "sentences": sentences,
        "passes_per_sentence": round(passes / sentences, 2),
        "GFLOP": round(total.total() / sentences / 1e9, 4),
        **{part: round(total[part] / sentences / 1e9, 4) for part in PARTS},
        per_pass: round(total["drafter"] / passes / 1e6, 2),
        "MFLOP_per_token": round(total.total() / tokens / 1e6, 2),
        _flop("FLOP_of_all"): total.total(),
        "x_greedy": round(total.total() / plain.total(), 2),
    }


# ---- training -----------------------------------------------------------------------------------


def lengths(data: str, subset: str, vocabularies: Mapping[str, int]) -> Counter[Any]:
    """Count the pairs of source and target lengths in a data set, ``</s>`` counted.

    Raises:
        UsageError: there is no such data, or it has another dictionary.
    """
    from ...plugin.tasks.flags import ParallelTranslationConfig
    from ...plugin.tasks.translation import ParallelTranslationTask

    settings = ParallelTranslationConfig(data=data, dataset_impl=None)
    task = ParallelTranslationTask.setup_task(settings)
    task.load_dataset(subset)
    known = len(task.target_dictionary)
    for path, vocabulary in vocabularies.items():
        if vocabulary != known:
            allowed = f"models for --data {data}, whose dictionary has {known}"
            raise option_error("CHECKPOINT", f"{path} with {vocabulary} target tokens", allowed)
    dataset = task.dataset(subset)
    if dataset.tgt_sizes is None:
        raise option_error("--subset", subset, "a subset with targets")
    return Counter(zip(dataset.src_sizes.tolist(), dataset.tgt_sizes.tolist(), strict=True))


def updates(checkpoint: Checkpoint, path: str) -> Callable[[int, int], Update]:
    """Return a function that counts an update on a sentence of given lengths.

    Raises:
        UsageError: the checkpoint holds heads without their base.
    """
    shape, model, criterion = checkpoint.shape, checkpoint.model, checkpoint.criterion
    if shape is None:
        raise option_error("CHECKPOINT", path, "heads with their base, which runs in training")
    if checkpoint.kind == BLOCK_NAT:
        from ...plugin.models.block_nat import TRIES

        glances = bool(criterion.get("glancing_ratio"))
        if "max_epoch" not in criterion:  # an older loss: from 0 it rose to its end
            glances |= bool(criterion.get("glancing_ratio_end"))
        least, block = criterion.get("prefixes_per_sentence", 1), model["drafter_block_size"]
        spacing = criterion.get("tokens_per_prefix")
        tries = TRIES if criterion.get("prefixes_after_errors") else 0
        shorter = range(1, block + 1) if model.get("random_block_size") else [block]

        def drafters(source: int, target: int) -> Update:
            prefixes = max(least, -(-target // spacing)) if spacing else least
            whole, *others = (
                training_flops.drafter_update(
                    shape, source, target, prefixes, size, glances, tries=tries * prefixes
                )
                for size in (block, *shorter)
            )
            return (whole + sum(others, Update()) * (1 / len(others))) * 0.5

        return drafters
    if checkpoint.heads is None:
        return lambda source, target: training_flops.transformer_update(shape, source, target)
    frozen, first = not model.get("fine_tune_base"), checkpoint.heads.first
    trained = list(range(1 if frozen and not first else 0, model["block_size"]))
    at_once = criterion.get("heads_per_update") == "all"
    draws: list[Sequence[int]] = [trained] if at_once else [[head] for head in trained]

    def mean(source: int, target: int) -> Update:
        each = (
            training_flops.heads_update(shape, source, target, heads, frozen) for heads in draws
        )
        return sum(each, Update()) * (1 / len(draws))

    return mean


def training(args: argparse.Namespace) -> Table:
    """Count the FLOPs of training."""
    paths = each_once("CHECKPOINT", args.checkpoint)
    checkpoints = {path: read_checkpoint("CHECKPOINT", path) for path in paths}
    learning = {path: updates(checkpoint, path) for path, checkpoint in checkpoints.items()}
    words = {path: c.shape.vocabulary for path, c in checkpoints.items() if c.shape is not None}
    pairs = lengths(args.data, args.subset, words)
    sentences = sum(pairs.values())
    tokens = sum(target * count for (_, target), count in pairs.items())
    names = {path: name for name, path in named({path: path for path in checkpoints}).items()}
    forward = column("forward_MFLOP_per_token", "forward, MFLOP per token")
    whole = column("training_MFLOP_per_token", "training, MFLOP per token")
    rows = []
    for path, checkpoint in checkpoints.items():
        total = sum((learning[path](*pair) * count for pair, count in pairs.items()), Update())
        rows.append(
            {
                "checkpoint": names[path],
                "architecture": str(checkpoint.model.get("arch") or checkpoint.kind),
                forward: round(total.forward / tokens / 1e6, 2),
                whole: round(total.total / tokens / 1e6, 2),
                "epochs": args.epochs,
                _flop("FLOP"): args.epochs * total.total,
            }
        )
    notes = [
        f"{args.subset} of {args.data}: {sentences} sentences, {tokens} target tokens (</s> "
        "counted), without padding.",
        "Multiply-adds of matrix products, two operations each; a backward pass is two forward "
        "passes where weights learn, less where they are frozen; no optimizer. A teacher and an "
        "initial model are not counted.",
    ]
    if any(checkpoint.kind == BLOCK_NAT for checkpoint in checkpoints.values()):
        notes.append(
            "block_nat: the mean over all prefix lengths, if glancing reveals no token; an upper "
            "bound, because revealed tokens are not projected."
        )
    return Table.of(rows, notes=notes)


# ---- the subcommands ----------------------------------------------------------------------------


def declare(command: Callable[..., Any]) -> None:
    """Declare the subcommands; see ``analyse.declare``."""
    number, positive = arguments.whole_number, arguments.positive
    add = command("flops", decoding, "FLOPs of decoding, by part", plugin=True)
    add("trace", nargs="+", metavar="TRACE", help=TRACED)
    add("--path", required=True, metavar="M", help="the checkpoint of the traces")
    add("--drafter-path", metavar="D", help="the drafter, or blockwise heads")
    add("--beam", type=number, metavar="N", help="the beam of multiword_beam, double_token_beam")
    add(
        "--benchmark",
        metavar="FILE",
        help=f"set speed beside FLOPs, of {MEASURED}; the traces are named like its decoders",
    )
    trained = {"type": positive, "default": 0, "metavar": "F"}
    add("--training-flops", **trained, help="with --benchmark: training of --path")
    add("--drafter-training-flops", **trained, help="with --benchmark: training of the drafter")

    add = command(
        "training-flops", training, "FLOPs of training, on the lengths of a data set", plugin=True
    )
    add("checkpoint", nargs="+", metavar="CHECKPOINT", help="trained models of any kind")
    add("--data", required=True, metavar="DATA", help="fairseq's data folder")
    add("--subset", default="train", help="of DATA (default: train)")
    add("--epochs", type=number, default=1, metavar="N", help="(default: 1)")
