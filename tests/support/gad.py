"""GAD with real and scripted drafters, and its slow twin."""

import argparse
import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from reference import gad as paper
from reference.greedy import rules_for
from torch import Tensor

from fairseq_paradec.engine.block import BlockScorer
from fairseq_paradec.plugin.models.block_nat import BlockNatModel
from support import builders
from support.builders import DRAFTER_BLOCK_SIZE, Limits, built, dictionary, lend, source_rows
from support.exact import Decoded, watched

SEED = 2  # of drafters whose outputs have many lengths
#: Every kind of drafter; "shared": on the verifier's own encoder.
KINDS: dict[str, dict[str, Any]] = {
    "bidirectional": {"attention": "bidirectional"},
    "bidirectional-copy-shared": {
        "attention": "bidirectional",
        "soft_copy": True,
        "decoder_layers": 1,
        "shared": True,
    },
    "causal": {"attention": "prefix_causal", "decoder_layers": 1, "soft_copy": True},
    "causal-copy-shared": {"attention": "prefix_causal", "soft_copy": True, "shared": True},
    "causal-sinusoids-sizes": {
        "attention": "prefix_causal",
        "drafter_positions": "sinusoidal",
        "random_block_size": True,
    },
}


@dataclass(frozen=True)
class Pair:
    """A verifier (or several) and a drafter."""

    task: Any
    models: tuple[Any, ...]
    drafter: BlockNatModel
    path: str  # what --drafter-path is


@functools.cache
def pair(variant: str, kind: str = "causal", dtype: torch.dtype = torch.float64) -> Pair:
    """A verifier of one of VARIANTS and a drafter of one of KINDS: leave both as they are."""
    task, model = built(variant, dtype)
    options = dict(KINDS[kind])
    verifier = model if options.pop("shared", False) else None
    drafter = builders.tiny_drafter(task, dtype=dtype, seed=SEED, verifier=verifier, **options)
    return Pair(task, (model,), drafter, lend(task, model, drafter))


#: source, prefix, k -> the scores that the drafter is to have at its k masks, k×V.
Script = Callable[[tuple[int, ...], Sequence[int], int], Tensor]


class ScriptedScorer(BlockScorer):
    """Runs the drafter's model, and then says something else."""

    def __init__(self, model: Any, script: Script, sources: list[list[int]]) -> None:
        super().__init__(model)
        self.script, self.sources = script, sources

    def _start(self, encoder_out: dict[str, Any]) -> None:
        super()._start(encoder_out)
        self.rows = list(range(len(self.sources)))

    def reorder(self, index: Sequence[int]) -> None:
        super().reorder(index)
        self.rows = [self.rows[i] for i in index]

    def fill(self, prefixes: Sequence[Sequence[int]], size: int) -> Tensor:
        asked = zip(self.rows, prefixes, strict=True)
        self.scores = torch.stack([self.script(tuple(self.sources[b]), y, size) for b, y in asked])
        return super().fill(prefixes, size)

    def _gather_weights(self) -> None:
        super()._gather_weights()
        self.passes.projection = self.projection._replace(linear=self._say)

    def _say(self, hidden: Tensor) -> Tensor:
        """Say what the script says, in the place of the model's projection."""
        scores = self.scores[:, : hidden.size(1)]
        assert scores.shape[:2] == hidden.shape[:2]
        return scores.to(hidden)


def run(
    given: Pair,
    sample: dict[str, Any],
    limits: Limits = Limits(),
    prefix_tokens: Tensor | None = None,
    script: Script | None = None,
    **flags: Any,
) -> list[Decoded]:
    """Decode a batch, and keep what happened in each row's passes."""
    models = list(given.models)
    if flags["decoding"] == "nat":
        models = [given.drafter]
    else:
        flags["drafter_path"] = given.path
    args = argparse.Namespace(**limits.flags(), **flags)
    generator = given.task.build_generator(models, args)
    if script is not None:
        generator.decoder.draft_scorer = ScriptedScorer(given.drafter, script, source_rows(sample))
    return watched(given.task, generator, models, sample, prefix_tokens)


@functools.cache
def said_by(
    given: Pair, source: tuple[int, ...], block_size: int, script: Script | None = None
) -> paper.Draft:
    """The twin's drafter, or one that follows a script."""
    if script is not None:
        return lambda prefix: script(source, prefix, block_size)
    trained = 1 if given.drafter.flags.random_block_size else given.drafter.block_size
    masks = max(block_size, trained)
    draft = paper.drafter(given.drafter, source, masks, given.drafter.decoder.attention)
    return lambda prefix: draft(prefix)[:block_size]


def twin(
    given: Pair,
    source: Sequence[int],
    limits: Limits = Limits(),
    prefix: Sequence[int] = (),
    script: Script | None = None,
    decoding: str = "gad",
    block_size: int = DRAFTER_BLOCK_SIZE,
    accept_topk: int = 3,
    accept_margin: float = 1.0,
    adaptive_block: bool = False,
) -> paper.Result:
    """What the paper's algorithm makes of one sentence."""
    models = [given.drafter] if decoding == "nat" else given.models
    words = given.task.target_dictionary
    rules = rules_for(words, models, len(source), prefix=prefix, **limits.reference())
    key = tuple(source)
    draft = said_by(given, key, block_size, script)
    if decoding == "nat":
        return paper.nat(draft, rules)
    verify = paper.verifier(given.models, source, rules)
    topk = 1 if decoding == "gad" else accept_topk
    return paper.gad(verify, draft, rules, topk, accept_margin, adaptive_block)


def lots(*key: Any) -> torch.Generator:
    """Random numbers that depend on the key alone."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def say(tokens: Sequence[int], size: int) -> Tensor:
    """Scores whose best are these tokens; where rules forbid one, whatever comes next."""
    scores = torch.rand(size, len(dictionary()), generator=lots(*tokens), dtype=torch.float64)
    return scores.scatter_(1, torch.tensor(tokens)[:, None], 9.0)


def _rest(tokens: list[int], prefix: Sequence[int], size: int, filler: int) -> list[int]:
    return (tokens + [filler] * 99)[len(prefix) :][:size]


def perfect(greedy: dict[tuple[int, ...], list[int]]) -> Script:
    """Knows greedy's output, and says nonsense after its end."""
    return lambda source, prefix, size: say(_rest(greedy[source], prefix, size, 7), size)


def noisy(greedy: dict[tuple[int, ...], list[int]], right: float = 0.75) -> Script:
    """Knows greedy's output, but not always."""

    def script(source: tuple[int, ...], prefix: Sequence[int], size: int) -> Tensor:
        told = _rest(greedy[source], prefix, size, 2)
        draws = torch.rand(size, generator=lots(source, prefix))
        told = [t if draw < right else 4 + t % 30 for t, draw in zip(told, draws, strict=True)]
        return say(told, size)

    return script


def wrong(greedy: dict[tuple[int, ...], list[int]]) -> Script:
    """Knows greedy's output, and says something else."""

    def script(source: tuple[int, ...], prefix: Sequence[int], size: int) -> Tensor:
        return say([4 + (t + 1) % 36 for t in _rest(greedy[source], prefix, size, 7)], size)

    return script


def ends_at_once(greedy: Any) -> Script:
    """Says `</s>` everywhere."""
    return lambda source, prefix, size: say([2] * size, size)


def never_ends(greedy: Any) -> Script:
    """Never says `</s>`."""
    return lambda source, prefix, size: say([4 + (len(prefix) + i) % 30 for i in range(size)], size)
