"""Reads a model that CTranslate2 converted: a folder with model.bin and its vocabularies.

Names of variables are those of CTranslate2's ``transformer_spec.py``.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import excludes, needs, option_error
from ...files import UNPACKED
from ...model.architecture import FIRST_POSITION, LAYERS, POSITIONS
from ...model.dictionary import BOS, EOS, PAD, SPECIAL, UNK
from ...model.model import sinusoids
from ...text import bpe, tokenizers
from .files import known_form, read_json
from .foreign import Foreign, learned_positions, options_of
from .model_bin import ModelBin
from .vocabulary import check_pieces, language_token, require_languages

#: The file of weights.
NAME = "model.bin"
#: The newest revision of the specification that is known, and the first with names as here.
_NEWEST, _OLDEST = 7, 2
#: fairseq's names of CTranslate2's activations, by number; GELU by a sigmoid is folded into swish.
_ACTIVATIONS = ("relu", "gelu_accurate", "swish", "gelu", "swish", "tanh")
_BY_SIGMOID, _SIGMOID = 4, 1.702
#: Positions of a model that has no table of them.
_COMPUTED = 1024
#: What says nothing about outputs, beside a model's layers.
_FREE = (
    *("alignment_layer", "alignment_heads", "embeddings_merge"),
    *("alibi_use_positive_positions", "scale_alibi"),
)
#: Switches that have to be off.
_OFF = ("alibi", "multi_query_attention", "with_relative_position")
#: Tokens of languages: M2M-100's, NLLB's, mBART-50's.
_LANGUAGE = re.compile(r"__[a-z]{2,3}__|[a-z]{3}_[A-Z][a-z]{3}|[a-z]{2}_[A-Z]{2}")
#: So many of them are no words of a text.
_SEVERAL = 10
#: Names of sentencepiece models beside model.bin: a pair, or one for both.
_PIECES = (
    *(("source.spm", "target.spm"), ("sentencepiece.model",) * 2),
    *(("sentencepiece.bpe.model",) * 2, ("spm.model",) * 2),
)


@dataclass(frozen=True)
class Splitting:
    """How text is split, as flags say it; None: as files beside the model say it."""

    source: Path | None = None  # a sentencepiece model of sources
    target: Path | None = None  # of targets; None: that of sources
    codes: Path | None = None  # of subword_nmt's BPE
    tokenizer: str | None = None  # fairseq's name


@dataclass(frozen=True)
class Bare:
    """A model for whoever splits texts into its words, and what CTranslate2 says beside it."""

    model: Foreign
    source_begin: bool  # whether <s> precedes sources
    source_end: bool  # whether </s> follows them
    alignment: tuple[int, int]  # by which layer outputs are aligned, and by how many of its heads
    stored: str  # numpy's type of most weights


def read(given: Path, source: str | None, target: str | None, splitting: Splitting) -> Foreign:
    """Read a model.

    Args:
        given: the folder, or its model.bin.
        source: the source language; None is an error.
        target: the target language; None is an error.
        splitting: how text is split.

    Raises:
        UsageError: a file is missing or wrong, the model is of another kind, a language is
            missing, or nothing says how text is split.
    """
    file = _file_of(given)
    pair = require_languages(source, target)
    parts, words, config = _read(file)
    folder, model = file.parent, dict(parts.model)
    # transformers' tokenizers put </s> there, and no converter of such a model says so.
    of_transformers = parts.zero_start or config["decoder_start_token"] != config["bos_token"]
    if of_transformers and not config["add_source_eos"]:
        note = "sources end with </s>, which transformers' tokenizers put there"
        model["notes"] = [*model["notes"], note]
    text = _text(folder, words, splitting)
    more = _languages(words, pair, of_transformers)
    more["before"] = ["<s>"] * config["add_source_bos"] + more["before"]
    if more["before"] and text["pieces"] is None:
        raise option_error(
            f"{file}: sources begin with", more["before"], "a model with --sentencepiece-source"
        )
    return Foreign(
        file=file,
        source=pair[0],
        target=pair[1],
        start=parts.start,
        words=words,
        search={"rules_of": "ctranslate2", "rules_renormalised": True},
        source_end=bool(config["add_source_eos"]) or of_transformers,
        **model,
        **text,
        **more,
    )


def read_bare(given: Path) -> Bare:
    """Read a model without what splits texts; its sources end as whoever asks ends them.

    Raises:
        UsageError: a file is missing or wrong, or the model is of another kind.
    """
    file = _file_of(given)
    parts, words, config = _read(file)
    model = Foreign(
        file=file,
        source="source",
        target="target",
        start=parts.start,
        words=words,
        pieces=None,
        tokenizer="space",
        **parts.model,
    )
    ends = bool(config["add_source_bos"]), bool(config["add_source_eos"])
    return Bare(model, *ends, parts.alignment, parts.stored)


class _Parts(NamedTuple):
    """What model.bin holds."""

    model: dict[str, Any]  # parts of Foreign
    start: int | None  # the decoder's first input; None: a vector of zeros
    zero_start: bool
    alignment: tuple[int, int]  # see ``Bare``
    stored: str


def _file_of(given: Path) -> Path:
    """Return the file of weights.

    Raises:
        UsageError: there is none.
    """
    file = (given.parent if given.name == NAME else given) / NAME
    if not file.is_file():
        allowed = f"a folder with {NAME}, as CTranslate2 converts"
        raise option_error("DIR", str(file.parent), allowed)
    return file


def _read(file: Path) -> tuple[_Parts, tuple[list[str | None], list[str | None]], dict[str, Any]]:
    """Read a model: what its file holds, its words, and its settings of tokens.

    Raises:
        UsageError: a file is missing or wrong, or the model is of another kind.
    """
    with known_form(file, "a Transformer as CTranslate2 converts it, undamaged"):
        content = ModelBin(file)
        if content.spec != "TransformerSpec":
            raise option_error(f"{file}: specification", content.spec, "TransformerSpec")
        if not _OLDEST <= content.revision <= _NEWEST:
            allowed = f"{_OLDEST} to {_NEWEST}"
            raise option_error(f"{file}: revision", content.revision, allowed)
        alignment = _alignment(content)
        model, zero_start = _model(content), _flag(content, "decoder/start_from_zero_embedding", 0)
    config = _config(file.parent, content)
    words, start = _words(file.parent, config)
    for name in content.left():
        raise option_error(f"{file}: {name}", "a variable of no known use", "those of Transformers")
    first = None if zero_start else start
    return _Parts(model, first, zero_start, alignment, _kinds(content)[0]), words, config


def _alignment(content: ModelBin) -> tuple[int, int]:
    """Return by which layer of the decoder outputs are aligned, and by how many of its heads.

    They are counted as CTranslate2 does: -1 is the last layer, and no head is all of them.
    """
    layer, heads = (
        int(content.scalar(f"decoder/alignment_{name}", default))
        for name, default in (("layer", -1), ("heads", 1))
    )
    return layer, heads


def _languages(
    words: tuple[list[str | None], list[str | None]], pair: tuple[str, str], of_transformers: bool
) -> dict[str, Any]:
    """Return the tokens of languages: ``before``, ``first`` and ``dropped`` of Foreign.

    Raises:
        UsageError: the model has several languages, and one of these is none of them.
    """
    named = [language for language in words[1] if language and _LANGUAGE.fullmatch(language)]
    if of_transformers and len(named) >= _SEVERAL and words[0] == words[1]:
        before, first = (
            language_token(flag, language, named)
            for flag, language in zip(("--source", "--target"), pair, strict=True)
        )
        return {"before": [before], "first": first, "dropped": named}
    code = f">>{pair[1]}<<"
    return {"before": [code] if code in words[0] else []}


def _flag(content: ModelBin, name: str, default: int) -> bool:
    """Take a switch."""
    return bool(content.scalar(name, default))


# ---- weights ------------------------------------------------------------------------------------


def _model(content: ModelBin) -> dict[str, Any]:
    """Take the weights and what they mean: parts of Foreign.

    Raises:
        UsageError: it is of a kind that is not known.
        ValueError: a variable is missing or of another form.
    """
    file = content.file
    sides = {side: _settings(content, side) for side in ("encoder", "decoder")}
    encoder, decoder = sides["encoder"], sides["decoder"]
    if encoder["activation"] != decoder["activation"]:
        given = f"{encoder['activation']} and {decoder['activation']}"
        raise option_error(f"{file}: activation", given, "the same in encoder and decoder")
    number = int(encoder["activation"])
    if number not in range(len(_ACTIVATIONS)):
        allowed = "relu, gelu, swish or tanh: 0 to 5"
        raise option_error(f"{file}: activation", number, allowed)
    fold = _SIGMOID if number == _BY_SIGMOID else 1.0
    tables = [_embedding(content, side) for side in sides]
    width = tables[0].shape[1]
    layers: dict[str, np.ndarray] = {}
    counts = [_side(content, side, width, fold, layers) for side in sides]
    most = [len(layers[f"{side}.embed_positions.weight"]) - FIRST_POSITION for side in sides]
    inner = [len(layers[f"{side}.layers.0.fc1.weight"]) for side in sides]
    # Scales that are not fairseq's become part of the vectors.
    root = math.sqrt(width)
    scales = [root if own["scale"] is None else own["scale"] for own in sides.values()]
    scaled = all(math.isclose(scale, root, rel_tol=1e-6) for scale in scales)
    if not scaled:
        tables = [t if s == 1 else t * np.float32(s) for t, s in zip(tables, scales, strict=True)]
    output = content.weight("decoder/projection/weight")
    bias = np.zeros(len(output), np.float32)
    if "decoder/projection/bias" in content:
        bias = content.weight("decoder/projection/bias")
    settings = options_of(
        file,
        width,
        (counts[0], counts[1]),
        (encoder["heads"], decoder["heads"]),
        (inner[0], inner[1]),
        _ACTIVATIONS[number],
        most[0],
        scaled,
        max_target_positions=most[1],
        encoder_normalize_before=encoder["pre_norm"],
        decoder_normalize_before=decoder["pre_norm"],
        no_decoder_final_norm="decoder.layer_norm.weight" not in layers,
        layernorm_embedding="encoder.layernorm_embedding.weight" in layers,
        encoder_learned_pos=True,
        decoder_learned_pos=True,
    )
    return {
        "settings": settings,
        "layers": layers,
        "embeddings": (tables[0], tables[1], output),
        "bias": bias,
        "notes": _notes(content),
    }


def _settings(content: ModelBin, side: str) -> dict[str, Any]:
    """Take the settings of a side; older files have them once, for both."""

    def scalar(name: str, default: float | None = None) -> float:
        own = f"{side}/{name}"
        return content.scalar(own if own in content or name not in content else name, default)

    for name in _FREE:
        scalar(name, 0)
    for name in _OFF:
        if scalar(name, 0):
            raise option_error(f"{content.file}: {side}/{name}", "a model with it", "one without")
    scale = content.scalar(f"{side}/embeddings/multiply_by_sqrt_depth", 1)
    heads = scalar("num_heads", 8)
    if heads < 1 or heads != int(heads):
        raise option_error(f"{content.file}: {side}/num_heads", heads, "a whole number from 1 up")
    name = f"{side}/scale_embeddings"
    if name in content and content.is_float(name):
        factor: float | None = content.scalar(name)
    else:  # a switch; None stands for the root of the width
        factor = None if content.scalar(name, scale) else 1.0
    return {
        "heads": int(heads),
        "pre_norm": bool(scalar("pre_norm", 1)),
        "activation": scalar("activation", 0),
        "scale": factor,
    }


def _embedding(content: ModelBin, side: str) -> np.ndarray:
    """Take the vectors of a side's words."""
    name = f"{side}/embeddings_0/weight"
    table = content.weight(name if name in content else f"{side}/embeddings/weight")
    if table.ndim != 2:
        raise ValueError(f"{side}/embeddings of size {table.shape}")
    return table


def _positions(content: ModelBin, side: str, width: int) -> dict[str, np.ndarray]:
    """Return the table of a side's positions; CTranslate2 computes those of a file without one."""
    name = f"{side}/position_encodings/encodings"
    if name in content:
        table = content.weight(name)
        table = table.reshape(-1, table.shape[-1])[:POSITIONS]
    else:
        table = sinusoids(np.arange(1, _COMPUTED + 1), width)
    own = f"{side}.embed_positions.weight"
    return {own: learned_positions(table)[own]}


def _side(
    content: ModelBin, side: str, width: int, fold: float, layers: dict[str, np.ndarray]
) -> int:
    """Add a side's positions, layers and norms to ``layers``: -> how many layers it has."""
    layers |= _positions(content, side, width)
    count = 0
    while count < LAYERS and f"{side}/layer_{count}/ffn/linear_0/weight" in content:
        layers |= _layer(content, side, count, fold)
        _check_aliases(content, layers)
        count += 1
    if not count:
        raise ValueError(f"there is no {side}/layer_0/ffn/linear_0/weight")
    for name in ("layer_norm", "layernorm_embedding"):
        if f"{side}/{name}/gamma" in content:
            layers |= _norm(content, f"{side}/{name}", f"{side}.{name}")
    return count


def _layer(content: ModelBin, side: str, number: int, fold: float) -> dict[str, np.ndarray]:
    """Take the weights of a layer by fairseq's names.

    Args:
        content: the file.
        side: ``encoder`` or ``decoder``.
        number: of the layer.
        fold: x * sigmoid(F * x) is swish(F * x) / F: F of the activation, 1 for others.
    """
    there, here = f"{side}/layer_{number}", f"{side}.layers.{number}"
    taken: dict[str, np.ndarray] = {}
    attentions: dict[str, tuple[str, tuple[str, ...]]] = {
        "self_attention": ("self_attn", ("qkv", "o"))
    }
    if side == "decoder":
        attentions["attention"] = ("encoder_attn", ("q", "kv", "o"))
    for name, (own, parts) in attentions.items():
        for at, letters in enumerate(parts):
            weight, bias = _linear(content, f"{there}/{name}/linear_{at}")
            if len(weight) % len(letters):
                raise ValueError(f"{there}/{name}/linear_{at} of size {weight.shape}")
            split = zip(letters, *(np.split(w, len(letters)) for w in (weight, bias)), strict=True)
            for letter, one, its_bias in split:
                part = "out" if letter == "o" else letter
                taken[f"{here}.{own}.{part}_proj.weight"] = one
                taken[f"{here}.{own}.{part}_proj.bias"] = its_bias
        taken |= _norm(content, f"{there}/{name}/layer_norm", f"{here}.{own}_layer_norm")
    for at, factor in ((0, fold), (1, 1 / fold)):
        weight, bias = _linear(content, f"{there}/ffn/linear_{at}")
        if factor != 1:
            weight = weight * np.float32(factor)
            bias = bias * np.float32(factor) if at == 0 else bias
        taken[f"{here}.fc{at + 1}.weight"], taken[f"{here}.fc{at + 1}.bias"] = weight, bias
    return taken | _norm(content, f"{there}/ffn/layer_norm", f"{here}.final_layer_norm")


def _linear(content: ModelBin, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Take a map, O×I, and its bias, which is zeros where there is none."""
    weight = content.weight(f"{name}/weight")
    if weight.ndim != 2:
        raise ValueError(f"{name}/weight of size {weight.shape}")
    if f"{name}/bias" not in content:
        return weight, np.zeros(len(weight), np.float32)
    bias = content.weight(f"{name}/bias")
    if bias.shape != weight.shape[:1]:
        raise ValueError(f"{name}/bias of size {bias.shape} beside {weight.shape}")
    return weight, bias


def _norm(content: ModelBin, there: str, here: str) -> dict[str, np.ndarray]:
    """Take a norm.

    Raises:
        UsageError: it has no bias, so that it is of another kind.
    """
    if f"{there}/beta" not in content and f"{there}/gamma" in content:
        raise option_error(f"{content.file}: {there}", "an RMS norm", "a layer norm, with beta")
    return {
        f"{here}.weight": content.weight(f"{there}/gamma"),
        f"{here}.bias": content.weight(f"{there}/beta"),
    }


def _check_aliases(content: ModelBin, layers: Mapping[str, np.ndarray]) -> None:
    """Refuse a file that stands for a model much larger than it."""
    size, given = sum(weight.nbytes for weight in layers.values()), content.file.stat().st_size
    if size > UNPACKED * given + (1 << 24):
        raise ValueError(f"{given} bytes that stand for {size}")


def _kinds(content: ModelBin) -> list[str]:
    """Return the types of weights, the commonest first."""
    counts = content.kinds(name for name in content.names() if name.endswith("/weight"))
    return sorted(counts, key=lambda kind: -counts[kind])


def _notes(content: ModelBin) -> list[str]:
    """Return what became of the weights, in a line."""
    kinds = _kinds(content)
    if kinds == ["float32"]:
        return []
    note = f"weights: {' and '.join(kinds)}, widened to fp32"
    if "int8" in kinds:
        note += "; --engine-dtype int8 computes with the same 8 bits again"
    return [note]


# ---- words and text -----------------------------------------------------------------------------


def _config(folder: Path, content: ModelBin) -> dict[str, Any]:
    """Return the settings of tokens, which older files have among the variables.

    Raises:
        UsageError: one is of another type, or is not known.
    """
    file = folder / "config.json"
    own: dict[str, Any] = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    own |= {"add_source_bos": False, "add_source_eos": False, "decoder_start_token": "<s>"}
    if content.version >= 6:
        given = read_json(file)
        own |= {name: given.get(name, value) for name, value in own.items()}
        for name, only in (("layer_norm_epsilon", 1e-5), ("multi_query_attention", False)):
            if given.get(name) not in (None, only):
                raise option_error(f"{file}: {name}", given[name], f"{only}")
    else:
        file = content.file
        with known_form(file, "settings of tokens"):
            for name in ("unk_token", "bos_token", "eos_token"):
                own[name] = content.text(name, own[name])
            for end in ("bos", "eos"):
                own[f"add_source_{end}"] = _flag(content, f"with_source_{end}", 0)
            begins = _flag(content, "with_target_bos", 1)
            own["decoder_start_token"] = own["bos_token" if begins else "eos_token"]
            if _flag(content, "user_decoder_start_tokens", 0):
                own["decoder_start_token"] = None
    for name, value in own.items():
        kind, allowed = (bool, "true or false") if name[:4] == "add_" else (str, "a token")
        if type(value) is not kind:
            raise option_error(f"{file}: {name}", value, allowed)
    return own


def _words(
    folder: Path, config: Mapping[str, Any]
) -> tuple[tuple[list[str | None], list[str | None]], int]:
    """Read the words of both sides by number, special ones by fairseq's names.

    Returns:
        The words, and the number of the decoder's first input.

    Raises:
        UsageError: a file is missing or damaged, or lacks a special word.
    """
    both, tokens = [], list[str]()
    for side in ("source", "target"):
        names = [f"{kind}_vocabulary.{end}" for kind in ("shared", side) for end in ("json", "txt")]
        file = next((folder / name for name in names if (folder / name).is_file()), None)
        if file is None:
            raise option_error("DIR", str(folder), f"a folder with one of {', '.join(names)}")
        tokens = _tokens(file)
        both.append(_renamed(file, tokens, config))
    start = config["decoder_start_token"]
    if start not in tokens:
        raise option_error(f"{file}: decoder_start_token", start, "a word of the vocabulary")
    return (both[0], both[1]), tokens.index(start)


def _tokens(file: Path) -> list[str]:
    """Read a vocabulary: a JSON list, or a token a line."""
    with known_form(file, "a list of tokens"):
        text = file.read_bytes().decode("utf-8")
        if file.suffix == ".json":
            tokens = json.loads(text)
        else:
            tokens = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise TypeError("it is no list of texts")
        return tokens


def _renamed(file: Path, tokens: Sequence[str], config: Mapping[str, Any]) -> list[str | None]:
    """Return tokens by fairseq's names of special ones; a word that comes again has no number."""
    places = {token: number for number, token in reversed([*enumerate(tokens)])}
    words: list[str | None] = [
        token if places[token] == number and token not in SPECIAL else None
        for number, token in enumerate(tokens)
    ]
    special = {BOS: config["bos_token"], EOS: config["eos_token"], UNK: config["unk_token"]}
    special[PAD] = "<pad>" if "<pad>" in places else "<blank>"
    for number, token in special.items():
        if token in places:
            words[places[token]] = SPECIAL[number]
        elif number in (EOS, UNK):
            raise option_error(str(file), f"no word {token}", "a vocabulary with this word")
    return words


def _text(
    folder: Path, words: Sequence[Sequence[str | None]], splitting: Splitting
) -> dict[str, Any]:
    """Return how text is split: ``pieces``, ``codes`` and ``tokenizer`` of Foreign.

    Raises:
        UsageError: a file is missing or another model's, or nothing says how text is split.
    """
    first, codes, name = splitting.source, splitting.codes, splitting.tokenizer
    if first is None and splitting.target is not None:
        raise needs("--sentencepiece-target", str(splitting.target), "--sentencepiece-source")
    if first is not None and (codes or name) is not None:
        raise excludes("--sentencepiece-source", str(first), "--bpe-codes and --tokenizer")
    if name is not None and name not in tokenizers.KINDS:
        raise option_error("--tokenizer", name, ", ".join(tokenizers.KINDS))
    if codes is not None:
        bpe.build("subword_nmt", {"bpe_codes": str(codes)})
    pieces = None if first is None else (first, splitting.target or first)
    if pieces is None and codes is None and name is None:
        beside = ([folder / own for own in names] for names in _PIECES)
        found = next((files for files in beside if all(f.is_file() for f in files)), None)
        if found is None:
            allowed = "a model beside source.spm and target.spm, or sentencepiece.model; or give "
            flags = "--sentencepiece-source, --bpe-codes, or --tokenizer space for split text"
            raise option_error("DIR", str(folder), allowed + flags)
        pieces = found[0], found[1]
    if pieces is not None:
        # One for both has to be that of sources: it joins pieces of any other, too.
        for file, known in {pieces[1]: words[1], pieces[0]: words[0]}.items():
            check_pieces(file, known, folder)
    return {"pieces": pieces, "codes": codes, "tokenizer": name}
