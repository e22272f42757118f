"""Drafters that know what they are to draft: their passes are real, their tokens are not."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...batch import Numbers
from ...decoding.assistant import AssistantDrafter
from ...decoding.loop import Drafter, Proposal, Verdict, num_to_score
from ...row import Row
from ...token_rules import TokenRules

NO_TOKEN = -1  # as </s> of the inner drafter: no draft ends before it is as long as it may be


class OracleDrafter(Drafter):
    """Drafts as many tokens as another drafter, but those of a given text.

    Args:
        inner: the drafter whose passes run; it drafts up to its block size, and its tokens are
            thrown away. Its cache rolls back as if the given tokens had been its own.
        texts: B, what each row is to draft, with ``</s>``.
        eos: the number of ``</s>``.
    """

    def __init__(self, inner: Drafter, texts: Sequence[list[int]], eos: int) -> None:
        self.inner, self.texts, self.eos = inner, list(texts), eos

    def propose(self, rows: Sequence[Row]) -> Proposal:
        """Run the inner drafter; draft what the texts say."""
        if isinstance(self.inner, AssistantDrafter):  # it would have written </s>, and stopped
            both = zip(rows, self.texts, strict=True)
            rows = [replace(row, limit=min(row.limit, len(text))) for row, text in both]
        own = self.inner.propose(rows).tokens
        starts = [len(row.tokens) for row in rows]
        drafts = [
            text[start : start + len(draft)]
            for text, start, draft in zip(self.texts, starts, own, strict=True)
        ]
        return Proposal(drafts, num_to_score(drafts, self.eos))

    def observe(self, verdict: Verdict) -> None:
        """Let the inner drafter read the answer."""
        self.inner.observe(verdict)

    def drop(self, stay: Sequence[int]) -> None:
        """Drop the texts and the inner drafter's state of finished rows."""
        self.texts = [self.texts[b] for b in stay]
        self.inner.drop(stay)


def give_oracle(generator: Any) -> list[list[int]]:
    """Let the drafters of a generator draft given texts.

    Args:
        generator: of a method with a drafter, without trees.

    Returns:
        The texts of the next batch's rows, to be filled in before it is decoded; left empty, the
        drafters draft on their own.
    """
    texts: list[list[int]] = []
    own = generator.make_drafter

    def make_drafter(rows: Sequence[Row], source: Numbers, rules: TokenRules) -> Any:
        if not texts:
            return own(rows, source, rules)
        endless = replace(rules, eos=NO_TOKEN, min_len=0)
        return OracleDrafter(own(rows, source, endless), texts, rules.eos)

    generator.make_drafter = make_drafter
    return texts


def with_errors(tokens: Sequence[int], rate: float, words: range, seed: int) -> list[int]:
    """Return tokens of which each is right at a rate, and else another word.

    What is right at a rate is also right at a higher one.
    """
    chance, written = random.Random(seed), []
    for token in tokens:
        wrong = token
        while wrong == token:
            wrong = chance.choice(words)
        written.append(token if chance.random() < rate else wrong)
    return written
