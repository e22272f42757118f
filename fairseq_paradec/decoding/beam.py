"""Beam search by steps of z words, vectorised over sentences and their hypotheses."""

from __future__ import annotations

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
        words = torch.zeros(len(live), 1, 0, dtype=torch.long, device=device)  # S×W×t
        details = torch.zeros(len(live), 1, 0, 3, dtype=torch.float64, device=device)  # S×W×t×3
        written = 0  # t
        while live:
            # 2. One pass predicts the words of all z slots, independently of each other.
            width = scores.size(1)
            hidden = self.scorer.step(inputs, mask=self._mask(written, device))
            repeated = [row for row in live for _ in range(width)]
            starts = [written] * len(repeated)
            found = self.scorer.best(hidden, rules, repeated, self.count, starts)  # (S·W)×z×N
            best = Best(*(part.unflatten(0, (len(live), width)) for part in found))
            top: Any = None  # S×W×z×2, twice
            if self.record_tokens:
                top = best.scores[..., :2], best.tokens[..., :2]
            step = self.extend(best, scores.to(best.scores.dtype))
            written += z
            for row in live:
                passes[row.index] += 1
            # 3. Ended hypotheses leave the beam. This is the pass's only copy to the host.
            alive = step.alive
            flags = torch.cat(
                (step.ended.scores.isfinite(), alive.scores.isfinite().any(1, keepdim=True)), dim=1
            )
            on_host = torch.cat((flags.long(), alive.parents), dim=1).tolist()
            count = step.ended.scores.size(1)
            ends = [(s, e) for s, row in enumerate(on_host) for e in range(count) if row[e]]
            if ends:
                self._finish(ends, live, finished, step.ended, words, details, top, rules.eos)
            # 4. The others are the next beam; finished sentences leave the batch.
            stay = [
                s for s, row in enumerate(live)
                if len(finished[row.index]) < beam and written <= row.limit and on_host[s][count]
            ]  # fmt: skip
            if not stay:
                break
            index = [s * width + parent for s in stay for parent in on_host[s][count + 1 :]]
            if len(stay) < len(live):
                picked = torch.tensor(stay, device=device)
                alive = Candidates(*(part.index_select(0, picked) for part in alive))
                words, details = words.index_select(0, picked), details.index_select(0, picked)
                top = None if top is None else tuple(part.index_select(0, picked) for part in top)
            words, details = _append(alive, words, details, top)
            scores, inputs = alive.scores, alive.words.flatten(0, 1)
            self.scorer.keep([written] * (len(live) * width))
            if index != list(range(len(live) * width)):
                same = len(stay) == len(live) and scores.size(1) == width
                self.scorer.reorder(index, same_source=same)
            live = [live[s] for s in stay]
        return finished, passes

    def _mask(self, written: int, device: torch.device) -> Mask:
        """Return the mask of the step that begins at slot ``written``, for StepScorer.step."""
        order = self.order
        if not order.vanilla_mask and not order.independent_directions:
            return "all"
        seen = order.step_mask(written + order.tokens_per_step)
        return seen[written:].to(device)

    def _finish(
        self,
        ends: list[tuple[int, int]],
        live: Sequence[Row],
        finished: list[list[Written]],
        ended: Candidates,
        words: Tensor,
        details: Tensor,
        top: Any,
        eos: int,
    ) -> None:
        """Collect the best ended hypotheses of this step, up to the beam size per sentence.

        Args:
            ends: sentence and candidate of each ended hypothesis in ``ended``.
            live: the sentences.
            finished: the hypotheses of each row of the batch; appended to.
            ended: the candidates.
            words: S×W×t, the words of their parents.
            details: S×W×t×3, see ``_append``.
            top: log-probabilities and words, S×W×z×2 each, of the two best; None without a trace.
            eos: ``</s>``.
        """
        s, e = torch.tensor(ends, device=words.device).T
        chosen = Candidates(*(part[s, e][:, None] for part in ended))
        whole, known = _append(
            chosen, words[s], details[s], None if top is None else tuple(part[s] for part in top)
        )
        totals = chosen.scores[:, 0].tolist()
        before = words.size(2)
        new: dict[int, list[Written]] = {}
        for (sentence, _), score, slots, entries in zip(
            ends, totals, whole[:, 0].tolist(), known[:, 0].tolist(), strict=True
        ):
            n = slots.index(eos, before)
            runners_up = [(int(word), value) for _, word, value in entries[: n + 1]]
            scores = [entry[0] for entry in entries[: n + 1]]
            new.setdefault(live[sentence].index, []).append(
                Written(score, slots[:n], scores, runners_up)
            )
        for index, hypos in new.items():
            hypos.sort(key=self.rank, reverse=True)
            finished[index] += hypos[: self.beam_size - len(finished[index])]


def _append(more: Candidates, words: Tensor, details: Tensor, top: Any) -> tuple[Tensor, Tensor]:
    """Append a step's words to their parents' words.

    Args:
        more: S×C candidates.
        words: S×W×t, the parents' words.
        details: S×W×t×3, for each word its log-probability, the runner-up, and the runner-up's
            log-probability.
        top: log-probabilities and words, S×W×z×2 each, of the two best; None without a trace.

    Returns:
        S×C×(t+z) words and S×C×(t+z)×3 details.
    """
    parents = more.parents[:, :, None]  # S×C×1
    words = torch.cat((_pick(words, parents), more.words), dim=2)
    new = torch.zeros(*more.words.shape, 3, dtype=details.dtype, device=details.device)
    new[..., 0] = more.word_scores
    if top is not None:
        values, best = (_pick(part, parents[..., None]) for part in top)  # S×C×z×2
        other = (best[..., 0] == more.words).long()[..., None]
        new[..., 1] = best.gather(3, other).squeeze(3)
        new[..., 2] = values.gather(3, other).squeeze(3)
    return words, torch.cat((_pick(details, parents[..., None]), new), dim=2)


def _pick(of_parents: Tensor, parents: Tensor) -> Tensor:
    """Gather the parents' entries of a tensor over the beam: S×W×... -> S×C×..."""
    return of_parents.gather(1, parents.expand(-1, -1, *of_parents.shape[2:]))
