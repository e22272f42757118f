"""Words in, words out: batches of a model, by the decoder that CTranslate2's options ask for."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ..batch import AsCTranslate2, Batch, Numbers
from ..config import LARGEST
from ..errors import option_error
from ..model.dictionary import BOS, EOS, PAD, UNK
from ..translator.batches import collate
from .opening import Opened
from .options import Options

_BEGIN, _END = "<s>", "</s>"
#: CTranslate2's log-probability of what it repeats because a beam holds nothing else.
_MISSING = -1e10


@dataclass
class TranslationResult:
    """A translation.

    Attributes:
        hypotheses: the words of each, the best first.
        scores: of each, the sum of log-probabilities by length**length_penalty; empty: not asked.
        attention: of each word of each, the weights of the source's words; empty: not asked.
        logits: empty.
    """

    hypotheses: list[list[str]]
    scores: list[float] = field(default_factory=list)
    attention: list[list[list[float]]] = field(default_factory=list)
    logits: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        """Return how many hypotheses there are."""
        return len(self.hypotheses)

    def __getitem__(self, place: int) -> dict[str, Any]:
        """Return a hypothesis as a dictionary, which is CTranslate2's older form of results.

        Args:
            place: from 0 up.

        Returns:
            ``tokens``; and ``score`` and ``attention``, where they were asked for.

        Raises:
            IndexError: there are fewer.
        """
        if not 0 <= place < len(self):
            raise IndexError(place)
        found: dict[str, Any] = {"tokens": self.hypotheses[place]}
        if self.scores:
            found["score"] = self.scores[place]
        if self.attention:
            found["attention"] = self.attention[place]
        return found


@dataclass
class ScoringResult:
    """What a model says of a translation.

    Attributes:
        tokens: its words, with ``</s>``.
        log_probs: of each.
    """

    tokens: list[str]
    log_probs: list[float]


class Worker:
    """A model with its decoders; one thread at a time works with it.

    Args:
        opened: the model.
        dtype: of its passes.
    """

    def __init__(self, opened: Opened, dtype: str) -> None:
        self._opened, self._translator, self._dtype = opened, opened.translator, dtype
        self._sources, self._targets = opened.translator.sources, opened.translator.targets
        assert opened.translator.core is not None
        layers = opened.translator.core.model.layers("decoder")
        self._layer, self._heads = opened.layer % layers.count, opened.heads or layers.heads
        self._decoders: dict[Any, Any] = {}

    # ---- translate -----------------------------------------------------------------------------

    def translate(
        self, texts: Sequence[Sequence[str]], prefixes: Sequence[Sequence[str] | None], how: Options
    ) -> list[TranslationResult]:
        """Translate a batch.

        Args:
            texts: the words of each text.
            prefixes: of each the words that its translation begins with, or None.
            how: CTranslate2's options.

        Raises:
            UsageError: a text is longer than the model's positions.
        """
        results = [self._nothing(*pair, how) for pair in zip(texts, prefixes, strict=True)]
        sources = [self._source(words, how.max_input_length) for words in texts]
        full = [
            place
            for place, tokens in enumerate(sources)
            if not _is_empty(texts[place]) and any(token not in (EOS, PAD) for token in tokens)
        ]
        if not full:
            return results
        order, batch = collate(sources, full)
        prefix = _padded([self._prefix(prefixes[place], how) for place in order])
        decoder = self._decoder(how)
        asked = AsCTranslate2(how.num_hypotheses, how.enough)
        ids = np.array(order)  # by which texts are drawn
        batch = replace(batch, ids=ids, prefix=prefix, as_ctranslate2=asked)
        rows = self._translator.decode(decoder, batch)
        limit = min(how.max_decoding_length, decoder.max_len - 1)
        found = [_ranked(row, limit, how) for row in rows]
        counts = [len(texts[place]) for place in order]
        looks = self._looks(decoder, batch, found, counts, how)
        for b, place in enumerate(order):
            words = [*texts[place]]
            results[place] = self._result(found[b], looks[b], words, how)
        return results

    def _nothing(
        self, words: Sequence[str], prefix: Sequence[str] | None, how: Options
    ) -> TranslationResult:
        """Return the translation of an empty text: its prefix, which looks nowhere."""
        count = how.num_hypotheses
        begun = [self._targets.symbols[token] for token in self._prefix(prefix, how)]
        result = TranslationResult([[*begun] for _ in range(count)])
        if how.return_scores:
            result.scores = [0.0] * count
        if how.return_attention:
            result.attention = [[[0.0] * len(words) for _ in begun] for _ in range(count)]
        return result

    def _decoder(self, how: Options) -> Any:
        """Return the decoder of some options; of greedy search the fastest with its output."""
        options = how.of_decoding()
        others = how.num_hypotheses - 1 if how.draws else 0
        key = others, *options.items()
        if key not in self._decoders:
            if how.beam_size > 1:
                decoding = "multiword_beam"
            else:  # there is nothing faster than int8 to draft an int8 model's outputs
                decoding = "greedy" if how.draws or self._dtype == "int8" else "self_draft"
            options |= {"decoding": self._translator.usual(decoding), "engine_dtype": self._dtype}
            self._decoders[key] = self._translator.generator(options, others=others)
        return self._decoders[key]

    def _source(self, words: Sequence[str], longest: int) -> list[int]:
        """Return the tokens of a text, of which there are so many at most; 0: of any number.

        Where it is cut a last ``</s>`` stays, be it the folder's or the program's.
        """
        begin, end = [BOS] * self._opened.source_begin, [EOS] * self._opened.source_end
        tokens = [*begin, *map(self._sources.index, words), *end]
        if 0 < longest < len(tokens):
            last = tokens[-1]
            tokens = tokens[:longest]
            if last == EOS:
                tokens[-1] = EOS
        return tokens

    def _prefix(self, words: Sequence[str] | None, how: Options) -> list[int]:
        """Return the tokens that an output begins with."""
        return [*map(self._targets.index, (words or ())[: how.max_decoding_length])]

    # ---- attention -----------------------------------------------------------------------------

    def _looks(
        self,
        decoder: Any,
        batch: Batch,
        found: Sequence[Sequence["_Found"]],
        counts: Sequence[int],
        how: Options,
    ) -> list[list[np.ndarray | None]]:
        """Return for each hypothesis where its tokens look in a source.

        Args:
            decoder: has the attention.
            batch: the sources.
            found: the hypotheses of each.
            counts: the words of each, S, also those that were cut off.
            how: CTranslate2's options.

        Returns:
            T×S of each; None: nobody asks.
        """
        asked = [
            (b, n)
            for b, hypos in enumerate(found)
            for n, hypo in enumerate(hypos)
            if how.return_attention or (how.replace_unknowns and UNK in hypo.tokens)
        ]
        looks: list[list[np.ndarray | None]] = [[None] * len(hypos) for hypos in found]
        if not asked:
            return looks
        outputs = [[*found[b][n].tokens, EOS] for b, n in asked]
        source = batch.take([b for b, _ in asked]).tokens
        weights = decoder.attention(source, outputs, self._layer, self._heads)
        first = int(self._opened.source_begin)
        for (b, n), look in zip(asked, weights, strict=True):
            last = look.shape[1] - self._opened.source_end
            whole = np.zeros((len(look), counts[b]), look.dtype)
            whole[:, : max(0, last - first)] = look[:, first:last]
            looks[b][n] = whole
        return looks

    def _result(
        self,
        hypos: Sequence["_Found"],
        looks: Sequence[np.ndarray | None],
        words: Sequence[str],
        how: Options,
    ) -> TranslationResult:
        """Return hypotheses as words.

        Args:
            hypos: the best first.
            looks: of each where its tokens look in the source, or None.
            words: of the source.
            how: CTranslate2's options.
        """
        result = TranslationResult([])
        symbols = self._targets.symbols
        for hypo, look in zip(hypos, looks, strict=True):
            output = [symbols[token] for token in hypo.tokens]
            if how.replace_unknowns and look is not None and words:
                for t, token in enumerate(hypo.tokens):
                    if token == UNK:
                        output[t] = words[int(look[t].argmax())]
            if how.return_end_token and hypo.ended:
                output.append(_END)
            result.hypotheses.append(output)
            if how.return_scores:
                result.scores.append(hypo.score)
            if how.return_attention and look is not None:
                result.attention.append(look[: len(output)].tolist())
        return result

    # ---- score ---------------------------------------------------------------------------------

    def score(
        self, pairs: Sequence[tuple[Sequence[str], Sequence[str]]], longest: int, offset: int
    ) -> list[ScoringResult]:
        """Return the log-probabilities of translations.

        Args:
            pairs: the words of each text, and those of its translation.
            longest: both are cut behind so many tokens; 0: nowhere.
            offset: leave out so many of the first tokens.

        Raises:
            UsageError: a text is longer than the model's positions, or the model does not write
                from left to right.
        """
        decoder = self._scorer()
        sources = [self._source(words, longest) for words, _ in pairs]
        cut = longest - 1 if longest else None
        targets = [[*map(self._targets.index, words[:cut]), EOS] for _, words in pairs]
        for name, tokens, most in (
            ("source", sources, self._translator.longest),
            ("target", targets, decoder.max_len),
        ):
            if (count := max(map(len, tokens))) > most:
                raise option_error(name, f"a text of {count} tokens", f"{most} at most")
        order, batch = collate(sources, range(len(pairs)))
        forced = [targets[place] for place in order]
        drafts = [tokens[:-1] for tokens in forced]
        rows = decoder.decode(replace(batch, prefix=_padded(forced), drafts=drafts))
        results = [ScoringResult([], []) for _ in pairs]
        for place, (hypo, *_) in zip(order, rows, strict=True):
            scores = hypo["positional_scores"].tolist()
            symbols = [self._targets[token] for token in targets[place][: len(scores)]]
            results[place] = ScoringResult(symbols[offset:], scores[offset:])
        return results

    def _scorer(self) -> Any:
        """Return what scores."""
        if (decoding := self._translator.usual("greedy")) != "greedy":
            allowed = "a model that writes a word a step, from left to right"
            raise option_error("score_batch()", f"a model of --decoding {decoding}", allowed)
        options = {"max_len_b": LARGEST, "min_len": 0, "engine_dtype": self._dtype}
        if "score" not in self._decoders:
            self._decoders["score"] = self._translator.generator({"decoding": "greedy"} | options)
        return self._decoders["score"]


def _is_empty(words: Sequence[str]) -> bool:
    """Return whether CTranslate2 takes a text for an empty one, of which nothing is read.

    Some models' texts end with ``</s>`` and the name of a language, which is nothing too.
    """
    rest = words[1:] if words and words[0] == _BEGIN else words
    if not rest or rest[0] != _END:
        return not rest
    return len(rest) == 1 or (len(rest) == 2 and rest[1] != _END)


class _Found(NamedTuple):
    """A hypothesis."""

    score: float
    tokens: list[int]  # without ``</s>``
    ended: bool  # whether ``</s>`` follows; else it was cut at the limit


def _ranked(row: Sequence[dict[str, Any]], limit: int, how: Options) -> list[_Found]:
    """Return a text's hypotheses as CTranslate2 ranks them, the best first.

    One that was cut at the limit has no ``</s>``, whose score is 0 as nothing else was allowed.
    """
    found = []
    for hypo in row:
        if "problem" in hypo:
            raise option_error("source", f"a text that {hypo['problem']}", "a shorter one")
        tokens = hypo["tokens"].tolist()[:-1]
        ended = len(tokens) < limit
        length = len(tokens) + ended
        score = float(hypo["positional_scores"].sum()) / length**how.length_penalty
        found.append(_Found(score, tokens, ended))
    found.sort(key=lambda hypo: -hypo.score)
    if how.beam_size == 1:  # greedy search repeats its output
        return (found * how.num_hypotheses)[: how.num_hypotheses]
    missing = min(how.num_hypotheses, how.beam_size) - len(found)  # it was told all of its words
    found += [found[-1]._replace(score=_MISSING / length**how.length_penalty)] * missing
    return found[: how.num_hypotheses]


def _padded(texts: Sequence[Sequence[int]]) -> Numbers | None:
    """Return tokens of several texts, padded at the end; None: there are none."""
    width = max(map(len, texts))
    if not width:
        return None
    padded = np.full((len(texts), width), PAD, np.int64)
    for row, tokens in zip(padded, texts, strict=True):
        row[: len(tokens)] = tokens
    return padded
