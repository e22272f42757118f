"""Methods and scenarios: the table's factors, and what a row of it decodes, on any device.

A case is a method with flags; a scenario is a model, a batch, limits, prefixes, an ensemble, a
precision.
"""

from __future__ import annotations

import argparse
import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from fairseq import utils
from reference.greedy import Rules, rules_for, stock_greedy

from support import assisted, blockwise, earlier, exact, gad, multiword
from support.builders import BANNED, VARIANTS, Limits, batch, built, collate, lend, source_rows
from support.pairwise import Row


@dataclass(frozen=True)
class Case:
    """A method with flags."""

    flags: tuple[tuple[str, Any], ...]
    family: str = "jacobi"  # which twin it has
    drafter: str = ""  # of GAD a kind of drafter or a script, of blockwise the layer of its heads
    exact: bool = True  # whether fairseq's greedy output is promised
    given: str = ""  # what earlier outputs are drafted, of earlier.KINDS; empty: there are none

    @property
    def method(self) -> str:
        return str(dict(self.flags)["decoding"])

    def __str__(self) -> str:
        words = [str(value) for _, value in self.flags]
        return "-".join([*words, *filter(None, (self.drafter, self.given))])


def case(
    decoding: str,
    family: str = "jacobi",
    drafter: str = "",
    exact: bool = True,
    given: str = "",
    **flags: Any,
):
    return Case((("decoding", decoding), *flags.items()), family, drafter, exact, given)


CASES = [
    *(case(**flags) for flags in exact.METHODS),
    case("pj", jacobi_init="source-copy", jacobi_stop="unchanged"),
    case("pgj", block_size=50, jacobi_init="ngram"),
    case("hgj", block_size=1, hybrid_length=1, jacobi_init="source-copy"),
    case(
        "hgj",
        block_size=5,
        hybrid_length=7,
        jacobi_window="sliding",
        jacobi_init="ngram",
        adaptive_block=True,
    ),
    case("gad", "gad", "causal", block_size=5),
    case("gad", "gad", "bidirectional", block_size=2),
    case("gad", "gad", "causal-copy-shared", block_size=16),
    case("gad", "gad", "perfect", block_size=5),
    case("gad", "gad", "noisy", block_size=5),
    case("gad", "gad", "noisy", block_size=50),
    case("gad", "gad", "wrong", block_size=3),
    case("gad", "gad", "ends_at_once", block_size=4),
    case("gad", "gad", "never_ends", block_size=4),
    case("gad", "gad", "noisy", block_size=6, adaptive_block=True),
    case("gad_pp", "gad", "causal", exact=False, block_size=5, accept_topk=20, accept_margin=3.0),
    case("gad_pp", "gad", "noisy", exact=False, block_size=5, accept_topk=3, accept_margin=1.0),
    case("gad_pp", "gad", "noisy", block_size=5, accept_topk=1, accept_margin=1.0),
    case("gad_pp", "gad", "bidirectional", exact=False, adaptive_block=True, accept_topk=20),
    case("assisted", "assisted", "itself", block_size=5),
    case("assisted", "assisted", "noisy"),
    case("assisted", "assisted", "noisy", block_size=4, adaptive_block=True),
    case("assisted", "assisted", "noisy", block_size=9, draft_confidence=0.3),
    case("assisted", "assisted", "other", block_size=3, draft_confidence=0.0),
    case("assisted", "assisted", "never_ends", block_size=50, draft_confidence=0.0),
    case("assisted", "assisted", "ends_at_once", block_size=3),
    case("assisted", "assisted", "noisy", exact=False, accept_topk=4, accept_margin=2.0),
    case("assisted", "assisted", "itself", block_size=5, draft_tree=8),
    case("assisted", "assisted", "noisy", block_size=8, draft_tree=32),
    case("assisted", "assisted", "noisy", draft_tree=12, draft_confidence=0.05),
    case("assisted", "assisted", "other", draft_tree=1),
    case("assisted", "assisted", "noisy", exact=False, draft_tree=24, accept_topk=4),
    case("self_draft", "self", block_size=5),
    case("self_draft", "self", adaptive_block=True),
    case("assisted", "beams", "noisy", exact=False, beam=2, block_size=5, audit=True),
    case("assisted", "beams", "other", exact=False, beam=7, block_size=2, audit=True),
    case("self_draft", "beams", exact=False, beam=4, block_size=3, audit=True),
    case("gad", "gad", "causal", draft_tree=24),
    case("gad", "gad", "noisy", block_size=50, draft_tree=32),
    case("gad_pp", "gad", "noisy", exact=False, draft_tree=9, accept_topk=20, accept_margin=4.0),
    case("blockwise", "blockwise", "dense", draft_tree=16),
    case("blockwise", "blockwise", "dense", exact=False, draft_tree=8, accept_topk=3),
    case("nat", "nat", "causal-sinusoids-sizes", exact=False, block_size=5),
    case("nat", "nat", "bidirectional-copy-shared", exact=False, block_size=2),
    case("blockwise", "blockwise", "per_head"),
    case("blockwise", "blockwise", "dense", block_size=2),
    case("blockwise", "blockwise", "dense", adaptive_block=True),
    case("blockwise", "blockwise", "per_head", exact=False, adaptive_block=True, min_block=3),
    case("blockwise", "blockwise", "dense", exact=False, accept_topk=3),
    case("blockwise", "blockwise", "per_head", exact=False, accept_distance=2),
    case("blockwise", "blockwise", "dense", exact=False, min_block=3, accept_topk=2),
    *(
        case("multiword_beam", "multiword", order, exact=False, beam=beam)
        for order, beam in (("ibdecoder", 1), ("imdecoder", 3), ("sa-3", 2), ("transformer_r2l", 5))
    ),
    *(case("greedy", given=kind) for kind in earlier.KINDS),
    case("assisted", "assisted", "noisy", given="near"),
    case("assisted", "assisted", "noisy", given="mixed", adaptive_block=True),
    case("assisted", "assisted", "other", given="mixed", block_size=5, draft_confidence=0.0),
    case("assisted", "assisted", "noisy", given="mixed", block_size=8, draft_tree=16),
    case("self_draft", "self", given="mixed"),
    case("self_draft", "self", given="near", block_size=3),
    case("gad", "gad", "noisy", given="mixed"),
    case("blockwise", "blockwise", "dense", given="mixed"),
    case("blockwise", "blockwise", "per_head", given="near", draft_tree=16),
    case("pgj", given="mixed", block_size=5, jacobi_window="sliding", adaptive_block=True),
    case("pj", given="near"),
    case("hgj", given="random", block_size=3, hybrid_length=7, jacobi_init="ngram"),
]

LIMITS = {
    "16": Limits(),
    "0": Limits(max_len_b=0, min_len=0),
    "1": Limits(max_len_b=1),
    "4": Limits(max_len_b=4),
    "model's": Limits(max_len_b=200),
    "early": Limits(min_len=0),
    "min9": Limits(min_len=9),
    "min16": Limits(min_len=16),
    "ratio": Limits(max_len_a=1.0, max_len_b=1),
    "unks": Limits(unkpen=-6.0),
    "no-unks": Limits(unkpen=15.0, temperature=0.6),
    "warm": Limits(temperature=1.7, lenpen=0.6),
    "no repeats": Limits(no_repeat_ngram_size=1),
    "bigrams": Limits(no_repeat_ngram_size=2, max_len_b=200),
    "trigrams": Limits(no_repeat_ngram_size=3, min_len=5, unkpen=-2.0),
    "penalty": Limits(repetition_penalty=1.5, max_len_b=200),
    "reward": Limits(repetition_penalty=0.7, no_repeat_ngram_size=2),
    "banned": Limits(banned=BANNED, repetition_penalty=1.1, min_len=6),
    "all": Limits(unnormalized=True, max_len_b=11, min_len=3, unkpen=-2.0, temperature=1.3),
}

#: Lengths, and whether padding is on the left.
BATCHES = {
    "ragged": ((3, 7, 5, 9), True),
    "alone": ((5,), True),
    "right": ((8, 2, 6, 4), False),
    "no ids": ((4, 6, 2, 3), True),
}

FACTORS = {
    "case": CASES,
    "variant": list(VARIANTS),
    "limits": list(LIMITS),
    "prefix": ["none", *exact.PREFIXES],
    "batch": list(BATCHES),
    "models": [1, 2],
    "dtype": ["float64", "float32", "native"],
    "suppressed": [(), (7, 9, 12, 15)],
}


def allowed(row: Row) -> bool:
    """Whether such a row makes sense: what a method refuses is tested where it is refused."""
    given = row.get("case")
    limits = LIMITS[row.get("limits", "16")]
    reads_texts = limits.no_repeat_ngram_size > 0 or limits.texts()
    if limits.banned and row.get("prefix", "none") != "none":
        return False  # the judge bans what a prefix forces, too
    if given is None:
        return True
    single = given.family in ("nat", "blockwise", "multiword")
    if row.get("models") == 2 and single:
        return False
    if reads_texts and dict(given.flags).get("min_block", 1) > 1:
        return False  # it writes what the rules forbid
    if reads_texts and given.family in ("nat", "multiword"):
        return False
    if dict(given.flags).get("audit") and limits.texts():
        return False  # fairseq's search does not judge rules that it does not have
    if given.family == "beams" and row.get("prefix") == "ends":
        return False  # fairseq's beam search fails where a prefix has `</s>`
    if given.family == "blockwise" and row.get("variant") in blockwise.ADAPTIVE:
        return False
    if given.family == "multiword":  # the orders are its models, and refuse prefixes
        if row.get("variant", "default") != "default" or row.get("prefix", "none") != "none":
            return False
    other = row.get("models") == 2 or row.get("variant") == "other_dims"
    if given.drafter.endswith("shared") and other:
        return False  # the drafter has the verifier's encoder, and one size
    if dict(given.flags).get("jacobi_init") == "source-copy" and row.get("variant") == "separate":
        return False
    return given.family != "multiword" or row.get("dtype", "float64") == "float64"


def row_name(row: Row) -> str:
    return "_".join(str(value) for value in row.values() if value != ())


@dataclass
class Setting:
    """Everything of a row, as the parts below need it."""

    case: Case
    task: Any
    models: list[Any]
    flags: dict[str, Any]
    sample: dict[str, Any]
    limits: Limits
    prefixes: list[list[int]]
    exact: list[dict[str, Any]]
    given: Any = None
    script: Any = None

    @property
    def forced(self) -> torch.Tensor | None:
        """The prefixes as the search gets them."""
        here = self.sample["net_input"]["src_tokens"].device
        return torch.tensor(self.prefixes, device=here) if self.prefixes[0] else None

    def rules(self, source: Sequence[int], prefix: Sequence[int]) -> Rules:
        """The twins' rules for one sentence."""
        words, limits = self.task.target_dictionary, self.limits.reference()
        return rules_for(words, self.models, len(source), prefix=prefix, **limits)

    def alone(self) -> list[Setting]:
        """Each row as a batch of its own."""
        rows, here = source_rows(self.sample), self.sample["net_input"]["src_tokens"].device.type
        samples = [on(here, collate(self.task, [torch.tensor(row)])) for row in rows]
        return [
            replace(self, sample=sample, prefixes=[prefix])
            for sample, prefix in zip(samples, self.prefixes, strict=True)
        ]


def on(device: str, sample: dict[str, Any]) -> dict[str, Any]:
    """A batch on the device, moved as fairseq's commands move it."""
    return utils.move_to_cuda(sample) if device == "cuda" else sample


@functools.cache
def placed(model: Any, device: str, dtype: torch.dtype) -> Any:
    """The model there, in this precision: itself if that is where it is."""
    first = next(model.parameters())
    if (first.device.type, first.dtype) == (device, dtype):
        return model
    return copy.deepcopy(model).to(device, dtype)


def setting_of(row: Row, device: str = "cpu") -> Setting:
    """Models, batch, limits, and what fairseq's own beam 1 makes of them."""
    chosen: Case = row["case"]
    flags: dict[str, Any] = dict(chosen.flags)
    dtype = torch.float32 if row["dtype"] == "native" else getattr(torch, row["dtype"])
    given: Any = None
    if chosen.family == "multiword":
        task, model = multiword.reordered(chosen.drafter)
    elif chosen.family == "blockwise":
        given = numbers(row["variant"], chosen.drafter, dtype)
        task, model = given.task, given.model
    else:
        task, model = built(row["variant"], dtype)
    models = [model] if row["models"] == 1 else [model, built("other_dims", dtype)[1]]
    models = [placed(one, device, dtype) for one in models]
    if chosen.method == "self_draft" and row["dtype"] == "float64":
        flags["drafter_dtype"] = "fp32"
    elif chosen.method == "self_draft" and device != "cpu":  # int8 is for the CPU
        flags["drafter_dtype"] = "fp32" if row["dtype"] == "bfloat16" else "bf16"
    limits = replace(LIMITS[row["limits"]], suppressed=row["suppressed"])
    lengths, left = BATCHES[row["batch"]]
    sample = on(device, batch(task, lengths, seed=1, left_pad=left))
    if row["batch"] == "no ids":
        sample = {"net_input": sample["net_input"]}
    forced = exact.PREFIXES.get(row["prefix"], [[]] * 4)[: len(lengths)]
    size = len(task.target_dictionary)
    prefixes = [[t if t < size else 4 + t % 12 for t in one] for one in forced]
    if chosen.family in ("gad", "nat"):
        kind = chosen.drafter if chosen.drafter in gad.KINDS else "causal"
        given = gad.pair(row["variant"], kind, dtype)
        drafter = placed(given.drafter, device, dtype)
        given = gad.Pair(task, tuple(models), drafter, lend(task, models[0], drafter))
    if chosen.method == "assisted":
        given = placed(assisted.drafter(row["variant"], chosen.drafter, dtype), device, dtype)
        flags["drafter_path"] = lend(task, models[0], given)
    setting = Setting(chosen, task, models, flags, sample, limits, prefixes, [], given)
    if chosen.family not in ("nat", "multiword", "beams"):
        setting.exact = stock(setting, row)
    greedy = exact.outputs_of(sample, setting.exact) if setting.exact else {}
    if chosen.given:
        outputs = [hypo["tokens"].tolist() for hypo in setting.exact]
        sample["drafts"] = earlier.drafts(chosen.given, outputs, size)
    if chosen.family == "gad":
        flags["drafter_path"] = given.path
        if chosen.drafter not in gad.KINDS:
            setting.script = getattr(gad, chosen.drafter)(greedy)
    elif chosen.family == "nat":
        setting.models = [given.drafter]
    return setting


@functools.cache
def numbers(variant: str, layer: str, dtype: torch.dtype) -> blockwise.Given:
    """A model over a few numbers, in which random heads are right at times: leave it as it is."""
    task, own = blockwise.number_task(), {"block_size": 6, "head_layer": layer}
    return blockwise.whole(task, variant, seed=7, dtype=dtype, **own)


def words_of(setting: Setting) -> list[str]:
    return [setting.task.target_dictionary[token] for token in setting.limits.suppressed]


#: The last few answers of fairseq, by what they depend on.
_STOCK: dict[Any, list[dict[str, Any]]] = {}


def stock(setting: Setting, row: Row) -> list[dict[str, Any]]:
    """fairseq's own beam 1; with a limit by source length each row alone, as ours takes it."""
    key = (setting.task, *setting.models, setting.limits, row["batch"], row["prefix"])
    if key not in _STOCK:
        while len(_STOCK) >= 8:
            del _STOCK[next(iter(_STOCK))]
        _STOCK[key] = _stock(setting)
    return _STOCK[key]


def _stock(setting: Setting) -> list[dict[str, Any]]:
    limits = setting.limits.stock() | {"tokens_to_suppress": words_of(setting)}
    parts = setting.alone() if setting.limits.max_len_a else [setting]
    found = [stock_greedy(p.task, p.models, p.sample, p.forced, **limits) for p in parts]
    return [hypo for hypos in found for hypo in hypos]


def generator_of(setting: Setting) -> Any:
    """The method under test, whose drafter may follow a script."""
    args = argparse.Namespace(
        **setting.limits.flags(setting.task.target_dictionary), **setting.flags
    )
    extra = {"tokens_to_suppress": words_of(setting)} if setting.limits.suppressed else None
    generator = setting.task.build_generator(setting.models, args, extra_gen_cls_kwargs=extra)
    if setting.script is not None:
        said = (setting.given.drafter, setting.script, source_rows(setting.sample))
        generator.decoder.draft_scorer = gad.ScriptedScorer(*said)
    return generator


def decoded(setting: Setting) -> list[dict[str, Any]]:
    """The best output of each sentence by the method under test."""
    task, sample = setting.task, setting.sample
    generator = generator_of(setting)
    hypos = task.inference_step(generator, setting.models, sample, prefix_tokens=setting.forced)
    return [row[0] for row in hypos]
