"""What every method must keep to on a device, in every precision.

fairseq's own beam-1 search, on the same device and in the same precision, is the judge. The numbers
of a gate are one row of the table that ``paradec results`` renders.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fairseq import utils
from support.builders import (
    DEMO,
    DEMO_DRAFTER,
    VARIANTS,
    Limits,
    batch,
    collate,
    decode,
    lend,
    lend_heads,
    source_rows,
    task_for,
    tiny_drafter,
    tiny_model,
)

from fairseq_paradec.decoding.audit import Audit
from fairseq_paradec.measure import loading, machine
from fairseq_paradec.methods.registry import METHODS
from fairseq_paradec.models.heads import BlockHeads

Sample = dict[str, Any]
Hypo = dict[str, Any]

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
MODELS = ("random", "demo")

#: What is run beside a method's defaults. A method that needs a flag (a model of its own, say) has
#: its ways here, its first one in place of the defaults.
DRAFTER = "the drafter of the group"
DRAFTED = {"drafter_path": DRAFTER}
HEADS = "the heads of the group"
HEADED = {"drafter_path": HEADS}
HELPERS = (DRAFTER, HEADS)
WAYS: dict[str, tuple[dict[str, Any], ...]] = {
    "gad": (DRAFTED, DRAFTED | {"block_size": 16}),
    "gad_pp": (DRAFTED, DRAFTED | {"accept_topk": 30, "accept_margin": 6.0}),
    "blockwise": (HEADED, HEADED | {"accept_topk": 3, "min_block": 2}),
    "hgj": ({}, {"block_size": 4, "jacobi_window": "sliding", "jacobi_init": "ngram"}),
}

#: The ordinary tests' part: models that differ in kind, and a few of the demo's sentences.
FEW_VARIANTS = ("learned_positions", "mbart", "adaptive_softmax")
FEW_SENTENCES, BATCH_SIZE = 12, 20

#: Source lengths of the random models' batches.
RAGGED = (3, 7, 5, 9, 2, 4, 12, 6)

#: How far log-probabilities in fp32 may be from fairseq's.
MAX_SCORE_GAP = 1e-4

NOTES = (
    "Judge: fairseq's own beam-1 search on the same device, in the same precision, TF32 off.",
    "Every sentence is decoded twice, alone and in a ragged batch, and each output is compared with"
    " the judge's for the same batch; `as alone` counts the batch's outputs that are also those of"
    " the method alone (a tie counts).",
    "A tie: the outputs part where the two tokens' log-probabilities are closer than 1e-4 in that"
    " precision (in fp16 and bf16 small gaps round to none).",
    "gad, gad_pp: each verifier has a drafter, the random ones a random drafter. nat decodes the"
    " drafter alone, which no search of fairseq's can: it has no judge, and the other gates hold."
    " blockwise: random heads on every verifier but those with an adaptive softmax.",
    "Gate in fp32: methods that promise greedy's tokens have none beyond ties, and scores within"
    " 1e-4; all methods decode a row as they do alone. In every precision: each output ends, with"
    " finite scores. Divergence in fp16 and bf16 is reported and no gate.",
    "Peak MiB: the most that decoding one batch takes beyond what is held before it; on a CPU the"
    " process's own memory, where the system tells.",
)


def ways(decoding: str) -> tuple[dict[str, Any], ...]:
    """The flags with which a method is run."""
    return WAYS.get(decoding, ({},))


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    decoding: str
    way: int
    dtype: str
    models: str

    @property
    def flags(self) -> dict[str, Any]:
        """The decoder's flags."""
        return {"decoding": self.decoding} | ways(self.decoding)[self.way]

    @property
    def label(self) -> str:
        """The decoder with its flags' values."""
        return " ".join(str(value) for value in self.flags.values() if value not in HELPERS)

    @property
    def is_judged(self) -> bool:
        """Whether fairseq's search can decode the same model."""
        return self.decoding != "nat"

    def __str__(self) -> str:
        return "-".join((self.label.replace(" ", "-"), self.dtype, self.models))


def cases() -> list[Case]:
    """All of them, for whatever methods there are that decode a plain Transformer."""
    names = [name for name in METHODS if name != "double_token_beam"]
    decoders = [(name, way) for name in names for way in range(len(ways(name)))]
    return [Case(*d, *rest) for d, *rest in itertools.product(decoders, DTYPES, MODELS)]


@dataclass
class Material:
    """A model with its drafter and its batches, on a device."""

    task: Any
    model: Any
    drafter: Any
    heads: Any  # None: this kind of model takes none
    limits: Limits
    #: A ragged batch and its rows one by one; fairseq's outputs for all of them in that order.
    batches: list[tuple[list[Sample], list[list[Hypo]]]]

    def __post_init__(self) -> None:
        self.paths = {DRAFTER: lend(self.task, self.model, self.drafter)}
        if self.heads is not None:
            self.paths[HEADS] = lend_heads(self.task, self.model, self.heads)

    def has(self, flags: dict[str, Any]) -> bool:
        """Whether the model has what these flags decode with."""
        return flags.get("drafter_path") in (None, *self.paths)

    def audit(self) -> Audit:
        """A fresh judge."""
        return Audit([self.model], self.task.target_dictionary, **self.limits.stock())

    def decode(self, sample: Sample, flags: dict[str, Any]) -> list[list[Hypo]]:
        """Decode by the method, as fairseq-generate drives it."""
        models, flags = self.run_by(flags)
        return [[hypo] for hypo in decode(self.task, models, sample, self.limits, **flags)]

    def run_by(self, flags: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """What the flags decode, and the flags with the drafter in them."""
        if flags.get("drafter_path") in self.paths:
            flags = flags | {"drafter_path": self.paths[flags["drafter_path"]]}
        return [self.drafter if flags["decoding"] == "nat" else self.model], flags

    def is_lossless(self, flags: dict[str, Any]) -> bool:
        """Whether the method promises greedy's tokens."""
        models, flags = self.run_by(flags)
        return bool(loading.generator(self.task, models, **flags).lossless)

    def compare(
        self, samples: Sequence[Sample], got: list[list[Hypo]], wanted: list[list[Hypo]]
    ) -> Counter[str]:
        """Count the sentences that are the same, and those that part at a tie."""
        audit, start = self.audit(), 0
        for sample in samples:
            end = start + len(sample["net_input"]["src_tokens"])
            with torch.no_grad():
                audit.compare_with(sample, got[start:end], wanted[start:end])
            start = end
        return Counter(sentences=start, identical=audit.identical, ties=audit.ties)


@functools.cache
def plain_models(models: str, few: bool) -> list[tuple[Any, Any, Any, Any, Limits, list[Sample]]]:
    """Task, fp32 model, drafter, heads on the CPU, limits and ragged batches of a group."""
    if models == "demo":
        (model,), task = loading.load(str(DEMO), str(DEMO / "model.pt"))
        task.load_dataset("test")
        dataset = task.dataset("test")
        count = FEW_SENTENCES if few else len(dataset)
        sources = [dataset[i]["source"] for i in range(count)]
        starts = range(0, count, BATCH_SIZE)
        samples = [collate(task, sources[i : i + BATCH_SIZE]) for i in starts]
        drafter = task.drafters._read(str(DEMO_DRAFTER))
        return [(task, model, drafter, random_heads(model), Limits(max_len_b=60), samples)]
    found = []
    for number, variant in enumerate(FEW_VARIANTS if few else VARIANTS):
        task = task_for(variant)
        model = tiny_model(task, variant, torch.float32)
        attention = ("prefix_causal", "bidirectional")[number % 2]
        shared = None if number % 3 == 2 else model
        drafter = tiny_drafter(task, attention, torch.float32, seed=2, verifier=shared)
        samples = [batch(task, RAGGED, seed=1)]
        found.append((task, model, drafter, random_heads(model), Limits(), samples))
    return found


def random_heads(model: Any) -> BlockHeads | None:
    """Heads for a Transformer's states; None if its softmax is adaptive, which takes none."""
    projection = getattr(model.decoder, "output_projection", None)
    if projection is None:
        return None
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        heads = BlockHeads(4, projection.weight.size(1), 32, "dense", False, "relu")
        heads.outer.normal_(std=0.1)
    return heads.eval()


@functools.lru_cache(maxsize=1)  # cases come group by group; a GPU need not hold all groups
def material(models: str, dtype: str, device: str, few: bool) -> list[Material]:
    """Models and batches on a device, with fairseq's own outputs."""
    found = []
    for task, *plain, limits, samples in plain_models(models, few):
        kind = {"device": device, "dtype": DTYPES[dtype]}
        own = [None if m is None else copy.deepcopy(m).to(**kind) for m in plain]
        item = Material(task, *own, limits, [])
        judge = item.audit().judge
        for sample in samples:
            alone = [collate(task, [torch.tensor(row)]) for row in source_rows(sample)]
            each = [on(device, s) for s in (sample, *alone)]
            item.batches.append((each, [h for s in each for h in judge.generate([item.model], s)]))
        found.append(item)
    return found


def on(device: str, sample: Sample) -> Sample:
    """A batch on the device, moved as fairseq's commands move it."""
    return utils.move_to_cuda(sample) if device == "cuda" else sample


def hold(case: Case, device: str, few: bool) -> tuple[dict[str, Any], list[str]]:
    """Decode everything of a case: its row of the table, and what it does not keep to."""
    single, ragged, same = Counter[str](), Counter[str](), Counter[str]()
    whole, score_gap, peaks, lossless = 0, 0.0, [], True
    for item in material(case.models, case.dtype, device, few):
        if not item.has(case.flags):
            continue
        lossless &= item.is_lossless(case.flags)
        for (batch_, *rows), wanted in item.batches:
            together, peak = machine.with_peak_memory(
                lambda item=item, batch_=batch_: item.decode(batch_, case.flags), device
            )
            peaks.append(peak)
            alone = [hypo for sample in rows for hypo in item.decode(sample, case.flags)]
            found, number = [*together, *alone], len(rows)
            if case.is_judged:
                single += item.compare(rows, alone, wanted[number:])
                ragged += item.compare([batch_], together, wanted[:number])
                same += item.compare([batch_], together, alone)
                gaps = score_gaps(found, wanted)
            else:
                same += alike(together, alone)
                gaps = score_gaps(together, alone)
            score_gap = max(score_gap, *gaps, 0.0)
            eos = item.task.target_dictionary.eos()
            whole += sum(is_whole(hypo, eos, device) for hypo in found)
    total = single + ragged
    judged = {
        "identical alone": single["identical"],
        "identical in batch": ragged["identical"],
        "ties": total["ties"],
        "beyond ties": total["sentences"] - total["identical"] - total["ties"],
        "divergence": f"{100 * (1 - total['identical'] / max(total['sentences'], 1)):.2f}%",
    }
    row = {
        "decoder": case.label,
        "precision": case.dtype,
        "models": case.models,
        "sentences": same["sentences"],
        **(judged if case.is_judged else dict.fromkeys(judged)),
        "as alone": same["identical"] + same["ties"],
        "largest score gap": f"{score_gap:.1e}",
        "peak MiB": max((peak for peak in peaks if peak is not None), default=None),
    }
    return row, list(broken(row, whole, score_gap, lossless))


def broken(row: dict[str, Any], whole: int, score_gap: float, lossless: bool) -> Iterator[str]:
    """Say what a row does not keep to.

    Args:
        whole: outputs, alone and in batches, that end and have finite scores.
        score_gap: the largest difference of log-probabilities from fairseq's, same tokens.
        lossless: whether the method promises greedy's tokens.
    """
    missing = 2 * row["sentences"] - whole
    if row["sentences"] == 0 or missing:
        yield f"{missing} of {2 * row['sentences']} outputs do not end or have scores not finite"
    if row["precision"] != "fp32":
        return
    if row["as alone"] < row["sentences"]:
        yield f"only {row['as alone']} of {row['sentences']} rows are decoded as if alone"
    if lossless and row["beyond ties"]:
        yield f"{row['beyond ties']} outputs differ from fairseq's beam 1 beyond ties"
    if lossless and not score_gap < MAX_SCORE_GAP:
        yield f"scores are up to {score_gap:.1e} from fairseq's; allowed: below {MAX_SCORE_GAP:.0e}"


def alike(got: Sequence[list[Hypo]], wanted: Sequence[list[Hypo]]) -> Counter[str]:
    """Count outputs that are the same, and that part at a tie, where nobody can judge.

    At a tie both tokens were the best of the same probabilities, but for rounding.
    """
    counts = Counter(sentences=len(got))
    for (ours, *_), (theirs, *_) in zip(got, wanted, strict=True):
        mine, other = ours["tokens"].tolist(), theirs["tokens"].tolist()
        if mine == other:
            counts["identical"] += 1
            continue
        at = next(i for i, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b)
        gap = ours["positional_scores"][at] - theirs["positional_scores"][at]
        counts["ties"] += float(gap.abs()) < MAX_SCORE_GAP
    return counts


def is_whole(hypos: list[Hypo], eos: int, device: str) -> bool:
    """Whether there is an output, on the device, that ends once and has finite scores."""
    tokens, scores = hypos[0]["tokens"], hypos[0]["positional_scores"]
    here = tokens.device.type == scores.device.type == device
    ends = tokens.eq(eos).nonzero().flatten().tolist() == [len(tokens) - 1]
    finite = len(scores) == len(tokens) and bool(scores.isfinite().all())
    return here and ends and finite and bool(torch.as_tensor(hypos[0]["score"]).isfinite())


def score_gaps(got: Sequence[list[Hypo]], wanted: Sequence[list[Hypo]]) -> Iterator[float]:
    """The largest difference of log-probabilities in each output of the same tokens."""
    for (ours, *_), (theirs, *_) in zip(got, wanted, strict=True):
        if torch.equal(ours["tokens"], theirs["tokens"].to(ours["tokens"])):
            gap = ours["positional_scores"].double() - theirs["positional_scores"].double()
            yield float(gap.abs().max())
