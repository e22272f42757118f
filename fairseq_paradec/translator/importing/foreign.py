"""What a model of another toolkit holds, whatever its format, and its parts as fairseq's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError, option_error
from ...model.architecture import FIRST_POSITION, Architecture, Layers, checked
from ...model.dictionary import EOS, SPECIAL
from ...model.file import release
from ...model.model import check_sizes
from ...model.settings import Vocabularies, architecture_of
from ...model.weights import as_fp32

#: The bias of a special word that the model does not have: it is never chosen, and e to it is 0.
NEVER = -1e4


@dataclass(frozen=True)
class Foreign:
    """A Transformer of another toolkit."""

    file: Path  # the file of its weights, for errors
    source: str  # the source language
    target: str  # the target language
    settings: Mapping[str, Any]  # fairseq's options of an equal Transformer
    # weights of layers, norms and positions, of 16 to 64 bits, by fairseq's names
    layers: Mapping[str, np.ndarray]
    # of sources, V×D; of target words that are read, V×D; of the output, V×D
    embeddings: tuple[np.ndarray, np.ndarray, np.ndarray]
    bias: np.ndarray  # of the output, V
    start: int | None  # the number of the decoder's first input; None: a vector of zeros
    # of the source and of the target, by number; None: a number without a word
    words: tuple[Sequence[str | None], Sequence[str | None]]
    # the sentencepiece models of the source and of the target; None: codes split words, if any do
    pieces: tuple[Path, Path] | None
    codes: Path | None = None  # of subword_nmt's BPE
    tokenizer: str | None = None  # fairseq's --tokenizer; None: none
    search: Mapping[str, Any] = field(default_factory=dict)  # fairseq's options of the search
    # sequences of target words, by number, that are not written one behind the other
    forbidden: Sequence[Sequence[int]] = ()
    source_end: bool = True  # whether the encoder reads </s> behind a source
    notes: Sequence[str] = ()  # lines about what became of it, for whoever imports it
    before: Sequence[str] = ()  # words that precede every source
    first: str | None = None  # the word that every output begins with; None: any
    dropped: Sequence[str] = ()  # target words that are no text, wherever they are in an output
    # encoder and decoder of a Transformer that is none of fairseq's; ``settings`` say nothing then
    sides: tuple[Layers, Layers] | None = None


def dictionary_order(words: Sequence[str | None]) -> list[int | None]:
    """Return the numbers of fairseq's words: the special ones, then the others in their order."""
    places = {word: number for number, word in enumerate(words)}
    others = (number for number, word in enumerate(words) if word not in SPECIAL)
    return [*(places.get(word) for word in SPECIAL), *others]


def names(words: Sequence[str | None], order: Sequence[int | None]) -> list[str]:
    """Return the words of a dictionary after the special ones, each a name that fairseq can read.

    A number without a word, and a word with a space in it, get a name that no text has.
    """
    readable_names = []
    for number in order[len(SPECIAL) :]:
        assert number is not None
        word = words[number]
        readable = word is not None and word.split() == [word] and _is_text(word)
        readable_names.append(str(word) if readable else f"<number-{number}>")
    return readable_names


def _is_text(word: str) -> bool:
    """Return whether a word has no half of a surrogate pair, which no file can hold."""
    return word == word.encode("utf-8", "replace").decode("utf-8")


def pick(table: np.ndarray, order: Sequence[int | None], missing: float = 0.0) -> np.ndarray:
    """Take rows in this order; ``missing`` fills those that are not there."""
    rows: np.ndarray = table[[number or 0 for number in order]]
    rows[[number is None for number in order]] = missing
    return rows


def convert(model: Foreign) -> tuple[Architecture, dict[str, np.ndarray]]:
    """Return record and weights of an equal ``imported_transformer``, or of a T5.

    fairseq's decoder begins with ``</s>``, which it reads nowhere else. So that word's vector is
    the one that this decoder begins with, and its embedding is its own if the two differ.

    Raises:
        UsageError: an embedding or the bias does not fit the dictionary, the decoder begins with a
            word that is not there, or a weight is missing or has another size than the settings
            say.
    """
    orders = [dictionary_order(words) for words in model.words]
    source, target, output = model.embeddings
    size = len(model.words[1])
    for name, table, shape in (
        ("source embeddings", source, (len(model.words[0]), *source.shape[1:2])),
        ("target embeddings", target, (size, *source.shape[1:2])),
        ("output embeddings", output, (size, *source.shape[1:2])),
        ("bias of the output", model.bias, (size,)),
    ):
        if table.shape != shape:
            given = f"{name} of size {table.shape}"
            raise option_error(str(model.file), given, f"{shape}, as its vocabulary has")
    if model.start is not None and model.start not in range(size):
        raise option_error(
            f"{model.file}: decoder_start_token_id", model.start, f"a number from 0 to {size - 1}"
        )
    order = orders[1]
    bias = pick(model.bias, order, NEVER)
    written = as_fp32(pick(output, order))
    if target is output and model.start is not None and order[EOS] == model.start:
        read = written  # large ones are not copied again
    else:
        read = as_fp32(pick(target, order))
        read[EOS] = 0.0 if model.start is None else as_fp32(target[model.start])
    has_one_vocabulary = model.words[0] == model.words[1]
    if read is written and source is target and has_one_vocabulary:
        encoder = read
    else:
        encoder = as_fp32(pick(source, orders[0]))
    for table in model.embeddings:
        release(table)
    is_shared = read is written or np.array_equal(read, written)
    has_bias = bool(bias.any())
    is_one = is_shared and has_one_vocabulary
    is_one = is_one and (encoder is read or np.array_equal(read, encoder))
    about: dict[str, Any] = {
        "shared": "all" if is_one else "output" if is_shared else None,
        "output_bias": has_bias,
        "first_target_token": model.first,
        "source_end": model.source_end,
    }
    weights = dict(model.layers)
    weights["encoder.embed_tokens.weight"] = encoder
    weights["decoder.embed_tokens.weight"] = read
    weights["decoder.output_projection.weight"] = written
    if has_bias:
        weights["decoder.output_projection.bias"] = bias
    try:
        architecture = _record(model, Vocabularies(*map(len, orders)), about)
        for tied in architecture.ties():
            weights.pop(tied)
        check_sizes(weights, architecture.shapes())
    except UsageError as error:
        raise UsageError(f"{model.file}: {error}") from error
    return architecture, weights


def _record(model: Foreign, words: Vocabularies, about: Mapping[str, Any]) -> Architecture:
    """Return a model's record; ``about``: its fields that name what both kinds have."""
    if model.sides is None:
        options = dict(model.settings) | {
            "_name": "imported_transformer",
            "share_all_embeddings": about["shared"] == "all",
            "share_decoder_input_output_embed": about["shared"] is not None,
            "output_bias": about["output_bias"],
            "first_target_token": about["first_target_token"],
            "no_source_end": not about["source_end"],
        }
        return architecture_of(options, words)
    encoder, decoder = model.sides
    record = Architecture(
        kind="t5",
        encoder=encoder,
        decoder=decoder,
        source_width=encoder.dim,
        source_words=words.source,
        target_words=words.target,
        output_dim=decoder.dim,
        **about,
    )
    return checked(record)


def options_of(
    file: Path,
    width: int,
    layers: tuple[int, int],
    heads: tuple[int, int],
    inner: tuple[int, int],
    activation: str,
    positions: int,
    scaled: bool,
    **more: Any,
) -> dict[str, Any]:
    """Return fairseq's options of a Transformer; pairs are encoder and decoder.

    Raises:
        UsageError: the width is no multiple of the heads.
    """
    options: dict[str, Any] = {
        "activation_fn": activation,
        "no_scale_embedding": not scaled,
        "max_source_positions": positions,
        "max_target_positions": positions,
        **more,
    }
    for index, side in enumerate(("encoder", "decoder")):
        if width % heads[index]:
            allowed = f"a divisor of the width, {width}"
            raise option_error(f"{file}: attention heads of the {side}", heads[index], allowed)
        options |= {
            f"{side}_embed_dim": width,
            f"{side}_layers": layers[index],
            f"{side}_attention_heads": heads[index],
            f"{side}_ffn_embed_dim": inner[index],
        }
    return options


def sinusoids(count: int, size: int) -> np.ndarray:
    """Return MarianMT's positions from 0 on, P×D: sines of all frequencies, then their cosines.

    They are those of transformers; Marian's own are fairseq's sinusoids.
    """
    half = size // 2
    rates = 10000 ** (-np.arange(half) * 2 / size)
    angles = np.arange(count)[:, None] * rates
    return np.concatenate((np.sin(angles), np.cos(angles)), axis=1).astype(np.float32)


def learned_positions(table: np.ndarray) -> dict[str, np.ndarray]:
    """Return fairseq's learned positions of both sides for a table of positions from 0 on, P×D."""
    padded = np.pad(table, ((FIRST_POSITION, 0), (0, 0)))
    return {f"{side}.embed_positions.weight": padded for side in ("encoder", "decoder")}
