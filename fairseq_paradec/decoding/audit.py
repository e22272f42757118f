"""``--audit``: every output is compared with fairseq's own search of the same beam."""

import logging
import math
from itertools import pairwise, zip_longest
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch
from ..config import DecodingConfig
from ..engine.torch.encoder import encode_by
from .stock_search import beam_search, search_batch
from .ties import TIE_GAP

logger = logging.getLogger(__name__)


class Audit:
    """Compares outputs with those of fairseq's SequenceGenerator, for the same models.

    Of a beam above 1 all hypotheses of the n-best list are compared, in their order. Keywords are
    fairseq's (limits, penalties).
    """

    def __init__(self, models: list[Any], tgt_dict: Any, beam: int = 1, **kwargs: Any) -> None:
        self.models, self.beam = models, beam
        self.judge = beam_search(models, tgt_dict, beam, **kwargs)
        self.max_len_a, self.max_len_b = self.judge.max_len_a, self.judge.max_len_b
        self.judge.max_len_a = 0  # see compare
        self.sentences = 0
        self.identical = 0
        self.ties = 0

    @classmethod
    def of(cls, models: list[Any], config: DecodingConfig, context: Any, beam: int = 1) -> "Audit":
        """Return the judge of a decoder: see ``methods/base.py``'s Decoder for the arguments."""
        return cls(
            models,
            context.words,
            beam,
            max_len_a=config.max_len_a,
            max_len_b=config.max_len_b,
            min_len=config.min_len,
            normalize_scores=not config.unnormalized,
            len_penalty=config.lenpen,
            unk_penalty=config.unkpen,
            temperature=config.temperature,
            no_repeat_ngram_size=config.no_repeat_ngram_size,
            tokens_to_suppress=tuple(context.tokens_to_suppress),
        )

    @torch.no_grad()
    def compare(self, batch: Batch, hypos: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Decode a batch again with fairseq's search and compare.

        Args:
            batch: what the method decoded.
            hypos: the method's B lists of hypotheses.

        Returns:
            B verdicts: ``identical``; for an output that differs, also the first ``position`` that
            differs, the ``gap`` between the two tokens' log-probabilities there (natural log), and
            whether it is a ``tie``. With a beam these are of the first ``hypothesis`` of the list
            that differs, from 0; a tie is a search in which two candidates of a decision score
            closer than ``TIE_GAP``, and the gap is the smallest of a decision.
        """
        # With max_len_a, fairseq's limit for a row depends on the other rows of its batch, so each
        # row is decoded alone, with its own limit.
        size = len(hypos)
        groups = [list(range(size))] if self.max_len_a == 0 else [[b] for b in range(size)]
        wanted = [hypo for group in groups for hypo in self._search(batch.take(group))]
        return self.compare_with(batch, hypos, wanted)

    def _search(self, part: Batch) -> list[list[dict[str, Any]]]:
        """Decode a part of a batch with fairseq's search."""
        own_limit = int(self.max_len_a * part.tokens.shape[1] + self.max_len_b)
        self.judge.max_len_b = max(own_limit, self.judge.min_len)
        return search_batch(self.judge, self.models, part)

    @torch.no_grad()
    def compare_with(
        self,
        batch: Batch,
        hypos: list[list[dict[str, Any]]],
        wanted: list[list[dict[str, Any]]],
    ) -> list[dict[str, Any]]:
        """Compare with given outputs of fairseq's search; see ``compare``."""
        verdicts = []
        for b, (ours, theirs) in enumerate(zip(hypos, wanted, strict=True)):
            row = batch.take([b])
            if self.beam > 1:
                first, second = (
                    [hypo["tokens"].tolist() for hypo in each] for each in (ours, theirs)
                )
                verdicts.append(self._verdict_of_beam(row, first, second))
                continue
            theirs_first = theirs[0]["tokens"]
            tokens = torch.as_tensor(ours[0]["tokens"]).to(theirs_first)
            verdicts.append(self._verdict(row, tokens, theirs_first))
        return verdicts

    def _verdict_of_beam(
        self, sentence: Batch, ours: list[list[int]], theirs: list[list[int]]
    ) -> dict[str, Any]:
        """Compare one n-best list, and count it."""
        if self._same(ours == theirs):
            return {"identical": True}
        pairs = list(zip_longest(ours, theirs, fillvalue=list[int]()))
        number = next(i for i, (a, b) in enumerate(pairs) if a != b)
        both = zip_longest(*pairs[number])
        position = next(i for i, (a, b) in enumerate(both) if a != b)
        gap = self._closest(sentence)
        self._tell(sentence, f"hypothesis {number + 1}, token {position}", gap)
        gap_or_none = gap if math.isfinite(gap) else None
        verdict = {"identical": False, "hypothesis": number, "position": position}
        return verdict | {"gap": gap_or_none, "tie": gap < TIE_GAP}

    def _closest(self, sentence: Batch) -> float:
        """Search one sentence again; return the smallest gap of a decision of fairseq's search.

        A decision separates two candidates: whether an end counts, which hypotheses go on, and how
        finished ones are ordered.
        """
        gaps, beam, step = [math.inf], self.beam, self.judge.search.step

        def watched(*args: Any, **kwargs: Any) -> Any:
            step_output = step(*args, **kwargs)
            scores, ends = step_output[0][0].double(), step_output[1][0].eq(self.judge.eos)
            among = scores[:beam][ends[:beam]]
            goes_on = scores[~ends][beam - 1 : beam + 1]
            edge = scores[beam - 1 : beam + 1] if bool(ends[beam - 1 : beam + 1].any()) else goes_on
            for values in (among, goes_on, edge):
                apart = values[:-1] - values[1:]
                gaps.extend(apart[apart.isfinite()].tolist())
            return step_output

        self.judge.search.step = watched
        try:
            (hypos,) = self._search(sentence)
        finally:
            del self.judge.search.step
        scores = [float(hypo["score"]) for hypo in hypos]
        gaps += [a - b for a, b in pairwise(scores)]
        return min(gaps)

    def _verdict(self, sentence: Batch, ours: Tensor, theirs: Tensor) -> dict[str, Any]:
        """Compare one output, and count it."""
        if self._same(torch.equal(ours, theirs)):
            return {"identical": True}
        common = min(ours.numel(), theirs.numel())
        position = int(ours[:common].eq(theirs[:common]).long().cumprod(0).sum())
        # If one output is a prefix of the other, it lacks </s>; that is not a tie of tokens.
        gap = math.inf
        if position < common:
            log_probs = self._next_log_probs(sentence, ours[:position])
            gap = float((log_probs[theirs[position]] - log_probs[ours[position]]).abs())
        self._tell(sentence, f"token {position}", gap)
        gap_or_none = gap if math.isfinite(gap) else None
        return {"identical": False, "position": position, "gap": gap_or_none, "tie": gap < TIE_GAP}

    def _same(self, same: bool) -> bool:
        """Count a sentence, and one whose outputs are the same; return whether they are."""
        self.sentences += 1
        if same:
            self.identical += 1
        return same

    def _tell(self, sentence: Batch, where: str, gap: float) -> None:
        """Log that an output differs, and count ties."""
        tie = gap < TIE_GAP
        self.ties += tie
        logger.warning(
            "audit: sentence %s differs from fairseq's --beam %d from %s on (gap %.2e, %s)",
            "of unknown number" if sentence.ids is None else sentence.ids[0],
            self.beam,
            where,
            gap,
            "a tie" if tie else "NOT a tie",
        )

    def _next_log_probs(self, sentence: Batch, prefix: Tensor) -> Tensor:
        """Return V log-probabilities of the token after ``prefix``, by fairseq's full forward."""
        start = self.judge.eos if sentence.start is None else sentence.start
        inputs = torch.cat((prefix.new_tensor([start]), prefix))[None]
        each = []
        for model in self.models:
            encoder_out = encode_by(model.encoder, sentence.tokens)
            hidden = model.decoder(inputs, encoder_out=encoder_out)
            output = (hidden[0][:, -1:] / self.judge.temperature, hidden[1])
            each.append(model.get_normalized_probs(output, log_probs=True)[0, -1])
        log_probs = torch.logsumexp(torch.stack(each), dim=0) - math.log(len(each))
        log_probs[self.judge.unk] -= self.judge.unk_penalty
        if self.judge.token_indices_to_suppress is not None:
            log_probs[self.judge.token_indices_to_suppress] = -math.inf
        return log_probs

    @property
    def beyond(self) -> int:
        """The number of sentences that differ beyond ties."""
        return self.sentences - self.identical - self.ties

    def closing_line(self) -> str:
        """Return the totals as a line of text."""
        return (
            f"audit: {self.identical} of {self.sentences} sentences identical to fairseq's "
            f"--beam {self.beam}, {self.ties} differ by a tie (gap < {TIE_GAP:g}), "
            f"{self.beyond} beyond ties"
        )
