"""Blockwise decoding with real and scripted heads, and its slow twin."""

import argparse
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from fairseq.data import Dictionary
from reference import blockwise as paper
from reference.greedy import rules_for

from fairseq_paradec.lab.analysis.blocks import block_sizes
from fairseq_paradec.plugin.tasks.flags import ParallelTranslationConfig
from fairseq_paradec.plugin.tasks.translation import ParallelTranslationTask
from support.builders import Limits, lend_heads, source_rows, tiny_blockwise, tiny_model
from support.exact import Decoded, watched

ADAPTIVE = ("adaptive_softmax", "adaptive_output_dim")


@dataclass(frozen=True)
class Given:
    """What is decoded with; `heads` are the model's own, or lent to it under `path`."""

    task: Any
    model: Any
    heads: Any
    path: str | None = None

    @property
    def flags(self) -> dict[str, Any]:
        """--decoding blockwise, with --drafter-path if need be."""
        return {"decoding": "blockwise"} | ({"drafter_path": self.path} if self.path else {})


def whole(task: Any, variant: str = "default", seed: int = 0, **options: Any) -> Given:
    """A model with heads."""
    model = tiny_blockwise(task, variant, seed=seed, **options)
    return Given(task, model, model.block_heads)


def lent(task: Any, base: Any, heads: Any) -> Given:
    """A Transformer, and heads beside it."""
    return Given(task, base, heads, lend_heads(task, base, heads))


@functools.cache
def number_task() -> ParallelTranslationTask:
    """A task whose words are numbers, in no order and with gaps, and fillers: 16 tokens.

    In so small a vocabulary random heads are right now and then.
    """
    words = Dictionary()
    for number in (3, 0, 21, 8, 1, 12, 2, 20, 5):
        words.add_symbol(str(number))
    words.pad_to_multiple_(8)  # adds madeupword0000 and two more
    return ParallelTranslationTask(ParallelTranslationConfig(), words, words)


#: Random models over numbers whose outputs have many lengths, and heads that are right at times.
#: Variant, layer and seed.
KINDS = {
    "per_head": ("prenorm", "per_head", 7),
    "dense": ("output_dim", "dense", 15),
    "per_head-first": ("prenorm", "per_head", 5),
    "dense-first": ("output_dim", "dense", 11),
    "gelu-first": ("mbart", "dense", 7),
    "lent": ("learned_positions", "dense", 2),
    "per_head-sees": ("prenorm", "per_head", 7),
    "dense-first-sees": ("output_dim", "dense", 11),
    "lent-sees": ("learned_positions", "dense", 2),
}

TRAINED = 6  # their block size


@functools.cache
def numbers(kind: str, block_size: int = TRAINED) -> Given:
    """A model of one of KINDS: leave it as it is."""
    (variant, layer, seed), task = KINDS[kind], number_task()
    options = {"head_layer": layer, "train_first_head": "first" in kind}
    options["heads_see_token"] = kind.endswith("sees")
    given = whole(task, variant, seed, block_size=block_size, **options)
    base = tiny_model(task, variant, seed=seed)
    return lent(task, base, given.heads) if kind.startswith("lent") else given


def build(given: Given, **flags: Any) -> Any:
    """The generator."""
    args = argparse.Namespace(**Limits().flags() | given.flags | flags)
    return given.task.build_generator([given.model], args)


def run(given: Given, sample: Any, limits: Any = None, **flags: Any) -> list[Decoded]:
    """Decode a batch by a generator of its own."""
    generator = build(given, **(limits or Limits()).flags(), **flags)
    return watched(given.task, generator, [given.model], sample)


def sizes(ours: Decoded) -> list[int]:
    """The paper's blocks."""
    return block_sizes([p.num_accepted for p in ours.row.passes], len(ours.tokens))


@functools.cache
def network(given: Given, source: tuple[int, ...]) -> paper.Network:
    """The twin's model; kept, because it remembers what it has computed."""
    heads = paper.heads_of(given.heads, given.model.flags.activation_fn)
    return paper.Network(given.model, heads, source)


def criterion(task: Any, flags: dict[str, Any]) -> paper.Criterion:
    """The twin's, for our flags."""
    words = task.target_dictionary
    values = {token: int(word) for token, word in enumerate(words.symbols) if word.isdigit()}
    most, far = flags.get("accept_topk", 1), flags.get("accept_distance", 0)
    known = values if "accept_distance" in flags else {}
    return paper.Criterion(most, far, known, least=flags.get("min_block", 1))


def twin(
    given: Given,
    source: Sequence[int],
    limits: Limits = Limits(),
    prefix: Sequence[int] = (),
    **flags: Any,
) -> paper.Result:
    """What the paper's algorithm makes of one sentence."""
    words = given.task.target_dictionary
    rules = rules_for(words, [given.model], len(source), prefix=prefix, **limits.reference())
    size = flags.get("block_size", given.heads.block_size)
    how = (criterion(given.task, flags), flags.get("adaptive_block", False))
    return paper.blockwise(network(given, tuple(source)), rules, size, *how)


def same_as_twin(given: Given, sample: dict[str, Any], **flags: Any) -> list[paper.Result]:
    """Check each row of a batch against the twin, which knows no batch; return its results."""
    found = []
    for ours, source in zip(run(given, sample, **flags), source_rows(sample), strict=True):
        want = twin(given, source, **flags)
        assert ours.tokens == want.tokens
        assert ours.row.scores == pytest.approx(want.scores, abs=1e-4)
        assert ours.hypo["steps"] == want.passes
        # A block's drafts are verified by the pass after the one that chose its first token.
        verified = [b for b in want.blocks if b.predicted[0] != 2]
        passes = [(b.start + 1, len(b.predicted) - 1, b.size - 1) for b in verified]
        assert ours.passes == [(0, 0, 0), *passes]
        found.append(want)
    return found
