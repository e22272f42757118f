"""Beam search by steps of z words, vectorised over sentences and their hypotheses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..target_order import TargetOrder
from .engine.masks import Mask
from .engine.scorers import Scorer
from .row import Row
from .token_rules import Best, TokenRules
from .written import Written


class Candidates(NamedTuple):
    """Hypotheses extended by one step; S sentences, C candidates each, z words per step.

    Attributes:
        scores: S×C, scores of whole hypotheses; -inf for no candidate.
        parents: S×C, the hypothesis of the beam that each candidate extends.
        words: S×C×z; words after a ``</s>`` are ignored.
        word_scores: S×C×z, the words' log-probabilities.
    """

    scores: Tensor
    parents: Tensor
    words: Tensor
    word_scores: Tensor


class Extension(NamedTuple):
    """The result of one step.

    Attributes:
        ended: candidates with a ``</s>``; those outside the best have the score -inf.
        alive: the next beam.
    """

    ended: Candidates
    alive: Candidates


class Node(NamedTuple):
    """A hypothesis's last step, on the host.

    Attributes:
        total: the score of the whole hypothesis.
        parent: the step before; None: this is the first.
        words: z words.
        scores: their log-probabilities.
        runners_up: for a trace, of each word the best other one and its log-probability.
    """

    total: float
    parent: Node | None
    words: list[int]
    scores: list[float]
    runners_up: list[tuple[int, float]]


@dataclass(frozen=True)
class BeamSearch:
    """A search over the hypotheses of a batch.

    Attributes:
        scorer: of the models, with a StepScorer for each.
        order: the models' target order.
        bos: the first of the start symbols of an order that has two.
        beam_size: the number of hypotheses that a sentence finishes.
        count: N, the number of words of a slot that ``extend`` needs.
        extend: extends the beams by one step. It takes each slot's best words, S×W×z×N; and the
            hypotheses' scores so far, S×W, -inf for no hypothesis.
        rank: the value by which finished hypotheses are compared.
        record_tokens: keep the runner-up of each word, for a trace.
    """

    scorer: Scorer
    order: TargetOrder
    bos: int
    beam_size: int
    count: int
    extend: Callable[[Best, Tensor], Extension]
    rank: Callable[[Written], float]
    record_tokens: bool

    @torch.inference_mode()
    def run(
        self, net_input: dict[str, Tensor], rows: Sequence[Row], rules: TokenRules
    ) -> tuple[list[list[Written]], list[int]]:
        """Encode, and extend the beams step by step until each sentence has its hypotheses.

        Returns:
            B lists of hypotheses, in the order in which they finish, and each sentence's number of
            passes.
        """
        z, beam, device = self.order.tokens_per_step, self.beam_size, rules.device
        self.scorer.encode(net_input)
        finished: list[list[Written]] = [[] for _ in rows]
        passes = [0] * len(rows)
        live = list(rows)  # S sentences
        # 1. One hypothesis per sentence: z start symbols, score 0.
        start = self.order.start(self.bos, rules.start)
        inputs = torch.tensor([start] * len(live), device=device)  # (S·W)×z
        scores = torch.zeros(len(live), 1, device=device)  # S×W
        beams: list[list[Node | None]] = [[None] for _ in live]
        written = 0  # t
        while live:
            # 2. One pass predicts the words of all z slots, independently of each other.
            width = scores.size(1)
            hidden = self.scorer.step(inputs, mask=self._mask(written, device))
            repeated = [row for row in live for _ in range(width)]
            starts = [written] * len(repeated)
            found = self.scorer.best(hidden, rules, repeated, self.count, starts)  # (S·W)×z×N
            best = Best(*(part.unflatten(0, (len(live), width)) for part in found))
            step = self.extend(best, scores.to(best.scores.dtype))
            written += z
            # 3. Ended hypotheses leave the beam. Only here the host reads what was computed.
            runners_up = _runners_up(best) if self.record_tokens else None
            for s, ended in enumerate(_on_host(step.ended, beams, runners_up)):
                passes[live[s].index] += 1
                done = finished[live[s].index]
                hypos = [self._written(node, rules.eos) for node in ended if node is not None]
                hypos.sort(key=self.rank, reverse=True)
                done += hypos[: beam - len(done)]
            # 4. The others are the next beam; finished sentences leave the batch.
            beams = _on_host(step.alive, beams, runners_up)
            stay = [
                s for s, row in enumerate(live)
                if len(finished[row.index]) < beam and written <= row.limit and any(beams[s])
            ]  # fmt: skip
            if not stay:
                break
            parents = step.alive.parents.tolist()
            index = [s * width + parent for s in stay for parent in parents[s]]
            scores, words = step.alive.scores, step.alive.words
            if len(stay) < len(live):
                picked = torch.tensor(stay, device=device)
                scores, words = scores.index_select(0, picked), words.index_select(0, picked)
            inputs = words.flatten(0, 1)
            self.scorer.keep([written] * (len(live) * width))
            if index != list(range(len(live) * width)):
                same = len(stay) == len(live) and scores.size(1) == width
                self.scorer.reorder(index, same_source=same)
            live, beams = [live[s] for s in stay], [beams[s] for s in stay]
        return finished, passes

    def _mask(self, written: int, device: torch.device) -> Mask:
        """Return the mask of the step that begins at slot ``written``, for StepScorer.step."""
        order = self.order
        if not order.vanilla_mask and not order.independent_directions:
            return "all"
        seen = order.step_mask(written + order.tokens_per_step)
        return seen[written:].to(device)

    def _written(self, last: Node, eos: int) -> Written:
        """Return an ended hypothesis; what follows its first ``</s>`` is dropped."""
        steps, node = [], last.parent
        while node is not None:
            steps.append(node)
            node = node.parent
        steps = [*reversed(steps), last]
        words = [word for step in steps for word in step.words]
        n = words.index(eos, len(words) - len(last.words))
        scores = [score for step in steps for score in step.scores]
        others = [other for step in steps for other in step.runners_up]
        return Written(last.total, words[:n], scores[: n + 1], others[: n + 1])


def _runners_up(best: Best) -> list[Any]:
    """Return the two best words of each slot and their scores, S×W×z pairs of pairs."""
    pairs = torch.stack((best.tokens[..., :2].double(), best.scores[..., :2].double()), dim=-1)
    found: list[Any] = pairs.tolist()
    return found


def _on_host(
    step: Candidates, beams: Sequence[Sequence[Node | None]], runners_up: list[Any] | None
) -> list[list[Node | None]]:
    """Return each sentence's candidates as nodes; None for no candidate.

    Args:
        step: the candidates.
        beams: the nodes that they extend.
        runners_up: see ``_runners_up``; None without a trace.
    """
    found = []
    for s, candidates in enumerate(zip(*(part.tolist() for part in step), strict=True)):
        nodes: list[Node | None] = []
        for total, parent, words, scores in zip(*candidates, strict=True):
            node = None
            if math.isfinite(total):
                others = []
                if runners_up is not None:
                    for word, (first, second) in zip(words, runners_up[s][parent], strict=True):
                        other, score = second if first[0] == word else first
                        others.append((int(other), score))
                node = Node(total, beams[s][parent], words, scores, others)
            nodes.append(node)
        found.append(nodes)
    return found
