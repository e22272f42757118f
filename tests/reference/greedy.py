"""Greedy search as fairseq does it, and the full forward pass that every reference stands on."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerDecoderBase, TransformerModelBase
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

#: One model, or the members of an ensemble.
Models = TransformerModelBase | Sequence[TransformerModelBase]

#: Two tokens whose log-probs differ by less than this may swap places by rounding.
TIE = 1e-4


def stock_greedy(
    task: Any,
    models: Sequence[TransformerModelBase],
    sample: dict[str, Any],
    prefix_tokens: torch.Tensor | None = None,
    **limits: Any,
) -> list[dict[str, torch.Tensor]]:
    """The best hypothesis of each row by fairseq's own SequenceGenerator, beam size 1."""
    generator = fairseqs_search(models, task.target_dictionary, beam_size=1, **limits)
    with torch.no_grad():
        hypos = generator.generate(list(models), sample, prefix_tokens=prefix_tokens)
    return [row[0] for row in hypos]


def fairseqs_search(
    models: Sequence[TransformerModelBase],
    words: Any,
    repetition_penalty: float = 1.0,
    banned: Sequence[Sequence[int]] = (),
    **limits: Any,
) -> SequenceGenerator:
    """fairseq's own SequenceGenerator, whose models' log-probs obey rules that it does not have.

    `banned`: no output has one of these sequences of tokens; not for prefixes that have them.
    """
    generator = SequenceGenerator(list(models), words, **limits)
    forward = generator.model.forward_decoder

    def ruled(tokens: Tensor, *rest: Any) -> Any:
        log_probs, attention = forward(tokens, *rest)
        for scores, (_, *text) in zip(log_probs, tokens.tolist(), strict=True):
            for token in set(text):
                scores[token] *= repetition_penalty
            for *before, last in banned:
                if last < len(scores) and text[len(text) - len(before) :] == before:
                    scores[last] = -math.inf
        return log_probs, attention

    if repetition_penalty != 1 or banned:
        generator.model.forward_decoder = ruled
    return generator


class _PlainPositions(torch.nn.Module):
    """Positions 0..T-1 for every token, where fairseq's would skip `<pad>`."""

    def __init__(self, embed_positions: torch.nn.Module, not_pad: int) -> None:
        super().__init__()
        self.wrapped = [embed_positions]  # in a list: not a submodule of this one
        self.not_pad = not_pad

    def forward(self, tokens: torch.Tensor, incremental_state: None = None) -> Any:
        return self.wrapped[0](torch.full_like(tokens, self.not_pad))


@contextmanager
def plain_guesses(decoder: TransformerDecoderBase) -> Iterator[None]:
    """Let `<pad>` be a token like any other in the decoder's input.

    fairseq numbers positions without counting `<pad>` and masks it from self-attention. A guess of
    a Jacobi iteration may be `<pad>`, and stands at its own position, seen by later ones.
    """
    padding_idx, embed_positions = decoder.padding_idx, decoder.embed_positions
    decoder.padding_idx = -1
    if embed_positions is not None:
        decoder.embed_positions = _PlainPositions(embed_positions, not_pad=padding_idx + 1)
    try:
        yield
    finally:
        decoder.padding_idx, decoder.embed_positions = padding_idx, embed_positions


class FullForward:
    """Full, non-incremental forward passes of fairseq's own decoder over one source.

    Several models are averaged as fairseq averages them (probabilities, by logsumexp). `source` has
    `</s>` and no padding.
    """

    @torch.no_grad()
    def __init__(self, models: Models, source: Sequence[int]) -> None:
        self.models = [models] if isinstance(models, TransformerModelBase) else list(models)
        self.device = next(self.models[0].parameters()).device
        src_tokens = torch.tensor([list(source)], device=self.device)
        src_lengths = torch.tensor([len(source)], device=self.device)
        self.encoded = [
            model.eval().encoder(src_tokens, src_lengths=src_lengths) for model in self.models
        ]

    @torch.no_grad()
    def __call__(self, prefix: Sequence[int], temperature: float = 1.0, start: int = 2) -> Tensor:
        """Log-probs of the token after each prefix of `prefix`, the empty one included.

        Any token of `prefix` may be `<pad>`; `start`, the decoder's first input, is `</s>` in
        fairseq. Returns a tensor of shape (len(prefix) + 1, V).
        """
        inputs = torch.tensor([[start, *prefix]], device=self.device)
        scores = []
        for model, encoder_out in zip(self.models, self.encoded, strict=True):
            with plain_guesses(model.decoder):
                output, extra = model.decoder(inputs, encoder_out=encoder_out)
            # fairseq divides the decoder's OUTPUT, which for adaptive softmax are features.
            output = output / temperature
            scores.append(model.get_normalized_probs((output, extra), log_probs=True)[0])
        if len(scores) == 1:
            return scores[0]
        return torch.logsumexp(torch.stack(scores), dim=0) - math.log(len(scores))


def full_log_probs(
    models: Models,
    source: Sequence[int],
    prefix: Sequence[int],
    temperature: float = 1.0,
    start: int = 2,
) -> Tensor:
    """What the `FullForward` of one source says after each prefix of `prefix`."""
    return FullForward(models, source)(prefix, temperature, start)


def known_log_probs(
    models: Sequence[TransformerModelBase], source: Sequence[int], rules: Rules
) -> Callable[[Sequence[int]], Tensor]:
    """`full_log_probs` of one sentence, for models that stay as they are: it remembers."""
    return _known(tuple(models), tuple(source), rules.temperature, rules.eos)


@functools.lru_cache(maxsize=64)  # the same question has the same answer: only saves time
def _known(
    models: tuple[TransformerModelBase, ...], source: tuple[int, ...], temperature: float, eos: int
) -> Callable[[Sequence[int]], Tensor]:
    forward = FullForward(models, source)
    known: dict[tuple[int, ...], Tensor] = {}  # what comes after these tokens: V

    def ask(tokens: Sequence[int]) -> Tensor:
        prefixes = [tuple(tokens[:count]) for count in range(len(tokens) + 1)]
        if not known.keys() >= set(prefixes):
            known.update(zip(prefixes, forward(tokens, temperature, eos), strict=True))
        return torch.stack([known[prefix] for prefix in prefixes])

    return ask


@dataclass(frozen=True)
class Rules:
    """What greedy may choose at a position: fairseq's limits, for ONE row."""

    pad: int
    unk: int
    eos: int
    max_len: int  # the last position that can be predicted; only `</s>` is allowed there
    min_len: int = 1  # no `</s>` before this position
    unk_penalty: float = 0.0
    temperature: float = 1.0
    prefix: tuple[int, ...] = ()  # forced first tokens; `<pad>` where nothing is forced
    suppressed: tuple[int, ...] = ()  # never chosen, but where a prefix has a column
    ngram: int = 0  # no n-gram of this size comes twice, but by force; 0: they may
    penalty: float = 1.0  # multiplies the log-probs of tokens that are in the text
    banned: tuple[tuple[int, ...], ...] = ()  # sequences that no output has, but by force

    def apply(
        self, log_probs: torch.Tensor, position: int, text: Sequence[int] | None
    ) -> torch.Tensor:
        """The scores (V) that greedy ranks at `position`; -inf where it may not go.

        `text` is what is written before it; None: nobody knows yet.
        """
        scores = log_probs.clone()
        for token in set(text or ()):
            scores[token] *= self.penalty
        scores[self.pad] = -math.inf
        scores[self.unk] -= self.unk_penalty
        if position >= self.max_len:
            return self._only(self.eos, scores)
        if position < len(self.prefix):  # min_len is not asked for here, forced token or not
            forced = self.prefix[position]
            if forced != self.pad:
                return self._only(forced, scores)
        elif position < self.min_len:
            scores[self.eos] = -math.inf
        if position >= len(self.prefix):
            scores[list(self.suppressed)] = -math.inf
        written = list(text or ())
        if self.ngram:
            for token in range(len(scores)):
                if self._repeats([*written, token]):
                    scores[token] = -math.inf
        for *before, last in self.banned:
            if last < len(scores) and written[len(written) - len(before) :] == before:
                scores[last] = -math.inf
        return scores

    def _repeats(self, text: list[int]) -> bool:
        """Whether the last n-gram of a text is there before."""
        n = self.ngram
        return any(text[i : i + n] == text[-n:] for i in range(len(text) - n))

    @staticmethod
    def _only(token: int, scores: torch.Tensor) -> torch.Tensor:
        kept = torch.full_like(scores, -math.inf)
        kept[token] = scores[token]
        return kept


def rules_for(
    words: Dictionary,
    models: Sequence[TransformerModelBase],
    src_length: int,
    max_len_a: float = 0.0,
    max_len_b: int = 200,
    min_len: int = 1,
    unk_penalty: float = 0.0,
    temperature: float = 1.0,
    prefix: Sequence[int] = (),
    suppressed: Sequence[int] = (),
    no_repeat_ngram_size: int = 0,
    repetition_penalty: float = 1.0,
    banned: Sequence[Sequence[int]] = (),
) -> Rules:
    """The rules of a row with `src_length` source tokens (`</s>` counted), as fairseq has them."""
    positions = min(model.max_decoder_positions() for model in models)
    return Rules(
        pad=words.pad(),
        unk=words.unk(),
        eos=words.eos(),
        max_len=min(int(max_len_a * src_length + max_len_b), positions - 1),
        min_len=min_len,
        unk_penalty=unk_penalty,
        temperature=temperature,
        prefix=tuple(prefix),
        suppressed=tuple(suppressed),
        ngram=no_repeat_ngram_size,
        penalty=repetition_penalty,
        banned=tuple(map(tuple, banned)),
    )


def assert_same_or_tie(
    models: Sequence[TransformerModelBase],
    source: Sequence[int],
    rules: Rules,
    got: Sequence[int],
    want: Sequence[int],
    close: float = TIE,
) -> int:
    """Check that `got` are the tokens `want`, or parted from them at a tie.

    At a tie both tokens are within `close` of the best one by the full forward. Returns 1 where
    the two part at a tie, 0 where they are the same: tests bound the sum.
    """
    got, want = list(got), list(want)
    if got == want:
        return 0
    parted = (i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b)
    at = next(parted, min(len(got), len(want)))
    assert at < min(len(got), len(want)), f"one output is cut short: got {got}, want {want}"
    log_probs = full_log_probs(models, source, want[:at], rules.temperature, start=rules.eos)
    scores = rules.apply(log_probs[at], at, want[:at])
    best = float(scores.max())
    gap = max(best - float(scores[got[at]]), best - float(scores[want[at]]))
    assert gap < close, f"position {at}: got {got}, want {want}, gap {gap:.3g} is no tie"
    return 1
