"""Blockwise decoding with real and scripted heads, and its slow twin."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from reference import blockwise as paper
from reference.greedy import rules_for
from torch import Tensor, nn

from fairseq_paradec.analysis.blocks import block_sizes
from fairseq_paradec.tasks.flags import ParallelTranslationConfig
from fairseq_paradec.tasks.translation import ParallelTranslationTask
from support.builders import (
    HEADS_BLOCK_SIZE,
    Limits,
    lend_heads,
    source_rows,
    tiny_blockwise,
    tiny_model,
)
from support.exact import Decoded, outputs_of, watched

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
}

TRAINED = 6  # their block size


@functools.cache
def numbers(kind: str, block_size: int = TRAINED) -> Given:
    """A model of one of KINDS: leave it as it is."""
    (variant, layer, seed), task = KINDS[kind], number_task()
    options = {"head_layer": layer, "train_first_head": kind.endswith("first")}
    given = whole(task, variant, seed, block_size=block_size, **options)
    base = tiny_model(task, variant, seed=seed)
    return lent(task, base, given.heads) if kind == "lent" else given


#: The tokens that follow upon a state's own next one -> what heads 1, 2, ... say there.
Script = Callable[[list[int]], list[int]]


def perfect(following: list[int]) -> list[int]:
    """Knows greedy's output, and says nonsense after its end."""
    return following + [7] * 99


def wrong(following: list[int]) -> list[int]:
    """Knows greedy's output, and says something else."""
    return [5 + token % 30 for token in perfect(following)]


def noisy(following: list[int]) -> list[int]:
    """Knows greedy's output, but each third token or so is another."""
    tokens = perfect(following)
    seed = sum(following)
    return [5 + t % 30 if (seed + 2 * i) % 3 == 0 else t for i, t in enumerate(tokens)]


def ends_at_once(following: list[int]) -> list[int]:
    """Says `</s>` everywhere."""
    return [2] * 99


def never_ends(following: list[int]) -> list[int]:
    """Knows greedy's output, but not that it ends."""
    return [9 if token == 2 else token for token in perfect(following)]


class Told(nn.Module):
    """Heads that know each state on the way to greedy's output, and say what a script says there.

    A state that is not on the way makes them fail: another one than that which the last committed
    token was chosen from, or another row's.
    """

    def __init__(self, model: Any, outputs: dict[Any, Any], script: Script, size: int) -> None:
        super().__init__()
        self.block_size = size
        self.bias = nn.Parameter(torch.zeros(1, 1, dtype=torch.float64))
        states, self.said = [], []
        for source, tokens in outputs.items():
            network = paper.Network(model, lambda state, i: state, source)
            states.append(network.states(tokens[:-1]))
            self.said += [script(tokens[i + 1 :]) for i in range(len(tokens))]
        self.known = torch.cat(states)  # N×D
        self.vectors = spoken(model)  # V×D

    def forward(self, states: Tensor, heads: Sequence[int]) -> Tensor:
        away = (states[:, None] - self.known).abs().amax(dim=2)  # B×N
        assert float(away.amin(dim=1).max()) < 1e-5, "a state that no token was chosen from"
        said = [self.said[n] for n in away.argmin(dim=1).tolist()]
        return self.vectors[torch.tensor([[tokens[i - 1] for i in heads] for tokens in said])]


@functools.cache
@torch.no_grad()
def spoken(model: Any) -> Tensor:
    """For each token a state that the model's projection makes it the best of: V×D.

    Of a token that is the best of none, some state.
    """
    projection = model.decoder.output_projection.weight  # V×D
    vectors = projection.clone()
    own = torch.arange(len(projection))
    for _ in range(1000):
        logits = vectors @ projection.t()
        logits[own, own] -= 1.0  # by a margin
        best = logits.argmax(dim=1)
        if bool(best.eq(own).all()):
            break
        vectors += 0.1 * (projection - projection[best])
    return vectors


def told(
    task: Any, base: Any, sample: Any, want: Any, script: Script, size: int = HEADS_BLOCK_SIZE
) -> Given:
    """A base, and heads that are told what it makes of these sources."""
    return lent(task, base, Told(base, outputs_of(sample, want), script, size))


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
    return paper.Criterion(
        topk=flags.get("accept_topk", 1),
        epsilon=flags.get("accept_distance", 0),
        numbers=values if "accept_distance" in flags else {},
        least=flags.get("min_block", 1),
    )


def twin(
    given: Given,
    source: Sequence[int],
    limits: Limits = Limits(),  # noqa: B008
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
