"""The floating-point operations of decoding sentences, from their traces; see ``flops.py``."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from .flops import Heads, Shape, decoder_pass, encoder, product, source_keys

EOS = "</s>"


#: Operations of decoding, by part: ``encoder`` (with the decoder's keys and values of the source),
#: ``decoder`` (the verifier's layers), ``projection`` (the verifier's, to the vocabulary) and
#: ``drafter`` (all of a drafter or heads, with their encoder and projections).
Count = Counter[str]
PARTS = ("encoder", "decoder", "projection", "drafter")


class Decoded(NamedTuple):
    """A sentence of a trace, and what decoded it."""

    record: Mapping[str, Any]  # with its source
    shape: Shape  # the verifier's
    drafter: Shape | Heads | None = None  # the drafter or heads, if any
    beam: int = 1  # number of hypotheses

    @property
    def source(self) -> int:
        """S."""
        return len(self.record["source"])

    @property
    def trace(self) -> Sequence[Mapping[str, Any]]:
        """The passes."""
        passes: Sequence[Mapping[str, Any]] = self.record["trace"]
        return passes

    @property
    def flags(self) -> Mapping[str, Any]:
        """The method's own."""
        flags: Mapping[str, Any] = self.record["flags"]
        return flags


def _count(**parts: float) -> Count:
    """Return the operations of some parts."""
    return cast(Count, Counter(parts))


def _read(shape: Shape, source: int) -> Count:
    """Count the encoder of a sentence."""
    return _count(encoder=encoder(shape, source) + source_keys(shape, source))


def _pass(shape: Shape, tokens: int, cached: int, source: int, hypotheses: int = 1) -> Count:
    """Count a pass of the verifier, which projects all of its tokens.

    Args:
        shape: its shape.
        tokens: of a hypothesis, in the pass.
        cached: cached tokens of a hypothesis.
        source: S.
        hypotheses: number of hypotheses.
    """
    whole = tokens * hypotheses
    layers, projection = decoder_pass(shape, whole, cached + tokens, source, whole)
    heads = shape.heads
    first = 0.0
    if heads and heads.first:
        first = heads.inner(whole, 1, sees=False) + heads.outer(whole, 1)
    return _count(decoder=layers + first, projection=projection)


def greedy(shape: Shape, source: int, tokens: int) -> Count:
    """Count greedy search: a token a pass."""
    return sum((_pass(shape, 1, t, source) for t in range(tokens)), _read(shape, source))


# ---- methods ------------------------------------------------------------------------------------


def verifying(sentence: Decoded) -> Count:
    """Count the verifier's passes for a sentence, without drafting.

    A pass is assumed to fill its block after a drafted ``</s>``: a record does not tell whether the
    length limit left less room.
    """
    passes = (
        _pass(sentence.shape, _scored(e), e["start"], sentence.source) for e in sentence.trace
    )
    return sum(passes, _read(sentence.shape, sentence.source))


def drafting(sentence: Decoded) -> Count:
    """Count the passes of verifier and block_nat drafter."""
    drafter, source = sentence.drafter, sentence.source
    assert isinstance(drafter, Shape)
    drafted = _start(drafter, source)
    size, words = sentence.flags["block_size"], sentence.flags.get("drafter_shortlist")
    # Without drafts, at the length limit, the drafter did not run.
    ran = [each for each in zip(sentence.trace, _proposed(sentence, size)) if each[0]["draft"]]
    places = _prefixes(drafter, [entry for entry, _ in ran])
    for (start, cached), (_, projected) in zip(places, ran):
        drafted += sum(_fill(drafter, start, cached, size, source, projected, words))
    return verifying(sentence) + _count(drafter=drafted)


def assisting(sentence: Decoded) -> Count:
    """Count the passes of verifier and autoregressive drafter.

    A draft's first pass reads what was committed and is not cached; each other one reads a draft.
    """
    drafter = sentence.drafter
    assert isinstance(drafter, Shape)
    drafted, words = _start(drafter, sentence.source), sentence.flags.get("drafter_shortlist")
    cached = 0
    for entry in sentence.trace:
        start = entry["start"]
        for i in range(len(entry["draft"])):
            tokens, seen = start + 1 - cached if i == 0 else 1, start + 1 + i
            drafted += sum(decoder_pass(drafter, tokens, seen, sentence.source, 1, words))
            cached = seen
        cached = min(cached, start + 1 + entry["num_accepted"])
    return verifying(sentence) + _count(drafter=drafted)


def looking_ahead(sentence: Decoded) -> Count:
    """Count passes and heads, the model's own by default, which read one state a pass."""
    heads = sentence.shape.heads if sentence.drafter is None else sentence.drafter
    assert isinstance(heads, Heads)
    words = sentence.flags.get("drafter_shortlist") or sentence.shape.vocabulary
    drafted = 0.0
    for entry, asked in zip(sentence.trace, _proposed(sentence, sentence.flags["block_size"] - 1)):
        if entry["draft"]:
            drafted += heads.inner(1, asked) + heads.outer(1, asked)
            drafted += product(asked, sentence.shape.output, words)
    return verifying(sentence) + _count(drafter=drafted)


def filling(sentence: Decoded) -> Count:
    """Count the passes of a block_nat model without a verifier."""
    shape, size = sentence.shape, sentence.flags["block_size"]
    total = _read(shape, sentence.source)
    for start, cached in _prefixes(shape, sentence.trace):
        layers, projection = _fill(shape, start, cached, size, sentence.source, size, None)
        total += _count(decoder=layers, projection=projection)
    return total


def searching(sentence: Decoded) -> Count:
    """Count a beam search by steps of z tokens, as this package does it.

    The first pass has one hypothesis, the others as many as the beam.
    """
    shape, z = sentence.shape, sentence.shape.tokens_per_step
    widths = (sentence.beam if t else 1 for t in range(len(sentence.trace)))
    steps = (_pass(shape, z, z * t, sentence.source, width) for t, width in enumerate(widths))
    return sum(steps, _read(shape, sentence.source))


# ---- drafts -------------------------------------------------------------------------------------


def _start(drafter: Shape, source: int) -> float:
    """Return the operations of a drafter before its passes: encoder, and keys of the source."""
    own = 0 if drafter.shares_encoder else encoder(drafter, source)
    return own + source_keys(drafter, source)


def _scored(entry: Mapping[str, Any]) -> int:
    """Return the number of tokens of the verifier's pass."""
    nodes = entry.get("num_nodes")
    return len(entry["verifier"]) if nodes is None else 1 + nodes


def _prefixes(drafter: Shape, trace: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Return for each pass of a block_nat model the number of prefix tokens, and of cached ones."""
    starts = [entry["start"] for entry in trace]
    before = [0, *starts[:-1]] if drafter.caches_prefix else [0] * len(starts)
    return list(zip(starts, before, strict=True))


def _fill(
    drafter: Shape,
    start: int,
    cached: int,
    size: int,
    source: int,
    projected: int,
    words: int | None,
) -> tuple[float, float]:
    """Count a pass of a block_nat model, layers and projection: new tokens and masks."""
    masks = max(size, drafter.block)
    return decoder_pass(drafter, start - cached + masks, start + masks, source, projected, words)


def _proposed(sentence: Decoded, most: int) -> list[int]:
    """Return for each pass the number of drafted tokens before ``</s>`` or a tree cut the draft."""
    size, adaptive = sentence.flags["block_size"], sentence.flags.get("adaptive_block")
    block, proposed = size, []
    for entry in sentence.trace:
        draft = entry["draft"]
        whole = min(most, block)
        cut = "num_nodes" in entry or (draft and draft[-1] == EOS)
        proposed.append(whole if cut else len(draft))
        if adaptive and draft:
            block = min(size, entry["num_accepted"] + 2)
    return proposed
