"""Multi-word beam search and its slow twin."""

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from reference import double_token_beam as pairs
from reference import multiword_beam as paper
from reference.greedy import Rules

from fairseq_paradec.target_order import TargetOrder
from support.builders import MAX_POSITIONS, Limits, tiny_reordered, tiny_task

RAGGED = (3, 7, 5, 2)
#: Presets with options and a seed whose outputs have many lengths.
MODELS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "ibdecoder": ("ibdecoder", 3, {}),
    "ibdecoder_sa": ("ibdecoder_sa", 3, {}),
    "imdecoder": ("imdecoder", 3, {}),
    "imdecoder-6": ("imdecoder", 15, {"directions": 6}),
    "sa_transformer": ("sa_transformer", 13, {}),
    "sa-3": ("sa_transformer", 3, {"tokens_per_direction": 3}),
    "transformer_r2l": ("transformer_r2l", 13, {}),
    "transformer_both_ends": ("transformer_both_ends", 3, {}),
    "middle": ("ibdecoder", 3, {"middle_to_side": True}),
    "independent": ("ibdecoder_sa", 2, {"independent_directions": True}),
    "vanilla_mask": ("ibdecoder_sa", 3, {"vanilla_mask": True}),
    "vanilla_positions": ("ibdecoder", 13, {"vanilla_positions": True}),
    "double_token": ("double_token", 14, {}),
    "double_token_l2r": ("double_token_l2r", 14, {}),
    "double_token_r2l": ("double_token_r2l", 14, {}),
    "double_token-middle": ("double_token", 14, {"middle_to_side": True}),
    "double_token-vanilla": ("double_token", 14, {"vanilla_mask": True}),
}


PREFIXES = torch.tensor([[7, 9, 4], [5, 1, 1], [8, 3, 1], [6, 6, 6]])


@functools.cache
def reordered(given: str, size: int = 40, seed: int | None = None) -> tuple[Any, Any]:
    """A task and its model, one of MODELS: leave both as they are."""
    arch, own, options = MODELS[given]
    task = tiny_task(size=size)
    return task, tiny_reordered(task, arch, seed=own if seed is None else seed, **options)


def run(
    task: Any,
    models: Sequence[Any],
    sample: dict[str, Any],
    beam: int,
    limits: Limits,
    prefix_tokens: torch.Tensor | None = None,
    **flags: Any,
) -> list[list[dict[str, Any]]]:
    """All hypotheses of each row, as fairseq-generate has them.

    A beam may be wider here than fairseq's, which it cuts to the vocabulary's size.
    """
    order = getattr(models[0], "target_order", None)
    own = "double_token_beam" if order is not None and order.double_token else "multiword_beam"
    given = {"decoding": own, "beam": beam, "nbest": beam} | flags
    generator = task.build_generator(list(models), argparse.Namespace(**limits.flags(), **given))
    generator.decoder.beam_size = given["beam"]
    return task.inference_step(generator, list(models), sample, prefix_tokens=prefix_tokens)


def rules_of(model: Any, src_length: int, limits: Limits, prefix: Sequence[int] = ()) -> Rules:
    """The rules of a row of so many source tokens, `</s>` counted."""
    z = model.target_order.tokens_per_step
    positions = MAX_POSITIONS // z * z
    return Rules(
        pad=1,
        unk=3,
        eos=2,
        max_len=min(int(limits.max_len_a * src_length + limits.max_len_b), positions - 1),
        min_len=limits.min_len,
        unk_penalty=limits.unkpen,
        temperature=limits.temperature,
        prefix=tuple(prefix),
        suppressed=limits.suppressed,
    )


def ranking(limits: Limits, formula: str = "fairseq") -> Callable[[float, int], float]:
    """How finished hypotheses are ranked: as fairseq does, or by Google's formula."""
    if limits.unnormalized:
        return lambda total, length: total
    if formula == "google":
        return lambda total, length: total / ((5 + length) / 6) ** limits.lenpen
    return lambda total, length: total / length**limits.lenpen


def twin(
    models: Sequence[Any],
    source: Sequence[int],
    beam: int,
    limits: Limits,
    prefix: Sequence[int] = (),
) -> list[paper.Output]:
    """What Algorithm 1 of either paper makes of one sentence."""
    spec, rules = models[0].target_order, rules_of(models[0], len(source), limits, prefix)
    ask, search = paper.asker(models, spec, source, rules), algorithm(spec).search
    finished = search(ask, spec, rules, beam, ranking(limits))
    return paper.outputs(finished, spec, rules.eos, ranking(limits))


def settled_twin(
    model: Any, source: Sequence[int], beam: int, limits: Limits, formula: str
) -> tuple[list[paper.Output], int]:
    """The best of all that a search to the limit finishes, and the passes until they are sure."""
    spec, rules = model.target_order, rules_of(model, len(source), limits)
    ask, search = paper.asker([model], spec, source, rules), algorithm(spec).search
    rank, steps = ranking(limits, formula), []
    finished = search(ask, spec, rules, beam, rank, steps)
    sure = [paper.settled(step, beam, rules.max_len + 1, rank) for step in steps]
    passes = sure.index(True) + 1 if True in sure else len(steps)
    return paper.outputs(finished, spec, rules.eos, rank)[:beam], passes


def algorithm(spec: TargetOrder) -> Any:
    """The twin's module: `search` and `every_output`."""
    return pairs if spec.double_token else paper


def assert_same(got: Sequence[dict[str, Any]], want: Sequence[paper.Output]) -> None:
    """All hypotheses of a row: tokens, score, and each word's own log-probability."""
    assert [hypo["tokens"].tolist() for hypo in got] == [output.tokens for output in want]
    for hypo, output in zip(got, want, strict=True):
        assert float(hypo["score"]) == pytest.approx(output.score, abs=1e-4)
        assert hypo["positional_scores"].tolist() == pytest.approx(output.scores, abs=1e-4)
