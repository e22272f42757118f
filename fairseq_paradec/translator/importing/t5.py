"""Reads T5, mT5, flan-T5 and MADLAD-400 from a folder that transformers saved."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import option_error
from ...model.architecture import Layers, Relative
from ...model.weights import as_fp32
from ...text.bpe import load_sentencepiece
from .files import added_tokens, ordinary_tokens, read_weights, whole_number
from .foreign import NEVER, Foreign
from .generation import forbidden_of, left_out, search_of, settings_of
from .vocabulary import require_languages, words_of

#: The families by ``model_type`` of config.json. MADLAD-400 and flan-T5 are ``t5``.
FAMILIES = ("t5", "mt5")

#: Positions at most: T5 has no limit, and was trained on 512.
MOST = 4096

#: Sizes that config.json names, and what they are if it does not; None: it has to.
_NUMBERS: Mapping[str, int | None] = {
    "d_model": None,
    "d_kv": None,
    "d_ff": None,
    "num_heads": None,
    "num_layers": None,
    "vocab_size": None,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
}

#: fairseq's names of activations by those of ``feed_forward_proj``.
_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_accurate",
    "gated-relu": "relu",
    "gated-gelu": "gelu_accurate",
    "gated-gelu_new": "gelu_accurate",
    "gated-silu": "swish",
}

#: The parts of layers by their names there: of a side's blocks, of the sublayers in them.
_SUBLAYERS: Mapping[str, tuple[str, ...]] = {
    "encoder": ("self_attn", "fc"),
    "decoder": ("self_attn", "encoder_attn", "fc"),
}
_MAPS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
_HIDDEN = {"wi": "fc1", "wi_0": "fc1", "wi_1": "fc3", "wo": "fc2"}

#: What T5 calls languages in the text that says what to do.
_LANGUAGES = {"en": "English", "de": "German", "fr": "French", "ro": "Romanian"}


def read(file: Path, config: Mapping[str, Any], source: str | None, target: str | None) -> Foreign:
    """Read a model.

    Args:
        file: config.json.
        config: what it holds.
        source: the source language.
        target: the target language.

    Raises:
        UsageError: a file is missing or wrong, or a language is unknown.
    """
    sizes = {key: whole_number(file, config, key, default) for key, default in _NUMBERS.items()}
    sides = _sides(file, config, sizes)
    pair = require_languages(source, target)
    generate, given = settings_of(file, config)
    special = {"pad_token_id": 0, "eos_token_id": 1} | dict(config)
    absent = left_out(generate, special, given, "forced_bos_token_id")
    weights_file, weights = read_weights(file.parent)
    tables = _tables(weights_file, weights, sizes)
    starts = (each.get("decoder_start_token_id") for each in (given, config))
    start = next((one for one in starts if one is not None), special["pad_token_id"])
    if type(start) is not int:
        allowed = f"a number from 0 to {sizes['vocab_size'] - 1}"
        raise option_error(f"{generate}: decoder_start_token_id", start, allowed)
    bias = np.zeros(sizes["vocab_size"], np.float32)
    if type(absent) is int and absent in range(len(bias)):
        bias[absent] = NEVER
    return Foreign(
        file=weights_file,
        source=pair[0],
        target=pair[1],
        settings={},
        search=search_of(generate, given),
        forbidden=forbidden_of(generate, special, given, len(bias)),
        sides=sides,
        layers=_layers(config, weights, sizes["d_model"]),
        embeddings=tables,
        bias=bias,
        start=start,
        **_text(file, config, pair, sizes["vocab_size"]),
    )


def _sides(
    file: Path, config: Mapping[str, Any], sizes: Mapping[str, int]
) -> tuple[Layers, Layers]:
    """Return encoder and decoder.

    Raises:
        UsageError: a setting is unknown.
    """
    epsilon = config.get("layer_norm_epsilon", 1e-6)
    if type(epsilon) not in (int, float) or not 0 < epsilon < 1:
        raise option_error(f"{file}: layer_norm_epsilon", epsilon, "a number above 0, below 1")
    default = "relu" if config["model_type"] == "t5" else "gated-gelu"
    hidden = config.get("feed_forward_proj", default)
    if hidden not in tuple(_ACTIVATIONS):
        raise option_error(f"{file}: feed_forward_proj", hidden, ", ".join(_ACTIVATIONS))
    own = config.get("num_decoder_layers")
    decoder = own if own is None else whole_number(file, config, "num_decoder_layers")
    near, far = (sizes[f"relative_attention_{name}"] for name in ("num_buckets", "max_distance"))
    encoder_side, decoder_side = (
        Layers(
            count=count,
            dim=sizes["d_model"],
            feed_forward=sizes["d_ff"],
            heads=sizes["num_heads"],
            pre_norm=True,
            activation=_ACTIVATIONS[hidden],
            scale=1.0,
            positions=None,
            most=MOST,
            embedding_norm=False,
            final_norm=True,
            head_size=sizes["d_kv"],
            epsilon=float(epsilon),
            is_rms=True,
            biases=False,
            gated=hidden.startswith("gated-"),
            scaled=False,
            relative=Relative(near, far),
        )
        for count in (sizes["num_layers"], decoder or sizes["num_layers"])
    )
    return encoder_side, decoder_side


def _layers(
    config: Mapping[str, Any], weights: Mapping[str, np.ndarray], width: int
) -> dict[str, np.ndarray]:
    """Return the weights of layers, norms and distances, by the names of the record.

    T5 v1.0 divides what the projection reads by the root of the width: here its last norm does.
    """
    layers = {}
    for name, weight in weights.items():
        known = re.fullmatch(r"(encoder|decoder)\.block\.(\d+)\.layer\.(\d)\.(.+)\.weight", name)
        if known is not None:
            side, block, number, part = known.groups()
            place = _place(side, int(number), part)
            if place is not None:
                layers[f"{side}.layers.{int(block)}.{place}.weight"] = weight
    for side in _SUBLAYERS:
        inside = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        for here, there in (("relative_bias", inside), ("layer_norm", f"{side}.final_layer_norm")):
            there = there if there == inside else f"{there}.weight"
            if there in weights:
                layers[f"{side}.{here}.weight"] = weights[there]
    last = "decoder.layer_norm.weight"
    if last in layers and _is_scaled(config):
        layers[last] = as_fp32(layers[last]) * np.float32(width**-0.5)
    return layers


def _place(side: str, number: int, part: str) -> str | None:
    """Return the record's name of a weight in a block; None: it is none of a layer's."""
    if number >= len(_SUBLAYERS[side]):
        return None
    sublayer = _SUBLAYERS[side][number]
    if part == "layer_norm":
        return "final_layer_norm" if sublayer == "fc" else f"{sublayer}_layer_norm"
    within = part.split(".")[-1]
    if sublayer == "fc":
        return _HIDDEN.get(within)
    return f"{sublayer}.{_MAPS[within]}" if within in _MAPS else None


def _is_scaled(config: Mapping[str, Any]) -> bool:
    """Return whether outputs are scaled, as transformers 5 decides it: T5 v1.0's alone are."""
    if config["model_type"] != "t5":
        return False
    said = config.get("scale_decoder_outputs")
    return bool(config.get("tie_word_embeddings", True) if said is None else said)


def _tables(
    file: Path, weights: Mapping[str, np.ndarray], sizes: Mapping[str, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the embeddings of sources, targets and the output.

    Raises:
        UsageError: one is missing, or has another size than config.json says.
    """
    named = ("shared", "encoder.embed_tokens", "decoder.embed_tokens")
    read = next((weights[f"{n}.weight"] for n in named if f"{n}.weight" in weights), None)
    if read is None:
        raise option_error(str(file), "no weight shared.weight", "a file with all weights")
    written = weights.get("lm_head.weight", read)
    wanted = sizes["vocab_size"], sizes["d_model"]
    for table in (read, written):
        if table.shape != wanted:
            given = f"embeddings of size {table.shape}"
            raise option_error(str(file), given, f"{wanted}, as config.json says")
        if table.dtype.kind in "biu":
            raise option_error(str(file), f"embeddings of {table.dtype}", "numbers with fractions")
    return read, read, written


def _text(
    file: Path, config: Mapping[str, Any], pair: tuple[str, str], size: int
) -> dict[str, Any]:
    """Return ``words``, ``pieces``, ``before``, ``dropped`` and ``notes`` of Foreign.

    Raises:
        UsageError: the sentencepiece model is missing or another's, or a language is unknown.
    """
    folder, pieces = file.parent, file.with_name("spiece.model")
    if not pieces.is_file():
        raise option_error(str(folder), pieces.name, "a folder with this file; it is missing")
    model = load_sentencepiece(str(pieces), str(pieces))
    numbers = {model.id_to_piece(number): number for number in range(len(model))}
    # transformers adds a hundred words of T5's training to every model: those that this one lacks
    # are left out.
    listed = added_tokens(folder, len(model))
    added = {t: number for t, number in listed.items() if t not in numbers and number < size}
    words = words_of(numbers | added, size, pieces)
    for name, key, default in (("<pad>", "pad_token_id", 0), ("</s>", "eos_token_id", 1)):
        _rename(file, config, words, name, (key, default))
    ordinary = ordinary_tokens(folder)
    prefix = _prefix(config, numbers, pair)
    told = "as they are" if prefix is None else f"behind {prefix!r}"
    before = [] if prefix is None else model.encode(prefix, out_type=str)
    if prefix in listed:  # a tokenizer that cuts tags out first
        before = [prefix]
    control = [model.id_to_piece(n) for n in range(len(model)) if model.is_control(n)]
    return {
        "words": (words, words),
        "pieces": (pieces, pieces),
        "before": before,
        "dropped": [token for token in (*control, *added) if token not in ordinary],
        "notes": [f"sources are read {told}"],
    }


def _rename(
    file: Path,
    config: Mapping[str, Any],
    words: list[str | None],
    name: str,
    setting: tuple[str, int],
) -> None:
    """Give a special word fairseq's name: in MADLAD-400 ``<s>`` pads.

    Raises:
        UsageError: its number is none of the model's, or another word has its name.
    """
    key, default = setting
    number = config.get(key, default)
    if type(number) is not int or number not in range(len(words)):
        raise option_error(f"{file}: {key}", number, f"a number from 0 to {len(words) - 1}")
    if name in words[:number] + words[number + 1 :]:
        allowed = f"{words.index(name)}, which is {name} in spiece.model"
        raise option_error(f"{file}: {key}", number, allowed)
    words[number] = name


def _prefix(
    config: Mapping[str, Any], numbers: Mapping[str, int], pair: tuple[str, str]
) -> str | None:
    """Return what precedes every source: what to do, in words, or a tag; None: nothing.

    Raises:
        UsageError: the model has tags of languages, or names tasks, and not this one.
    """
    source, target = pair
    tags = {piece[2:-1] for piece in numbers if re.fullmatch(r"<2[^<>]+>", piece)}
    if target in tags:
        return f"<2{target}>"
    if tags:
        some = difflib.get_close_matches(target, tags) or [*sorted(tags)[:5], "..."]
        allowed = f"one of the model's {len(tags)} languages: {', '.join(some)}"
        raise option_error("--target", target, allowed)
    tasks = config.get("task_specific_params")
    told = {
        name: task["prefix"].strip()
        for name, task in (tasks.items() if isinstance(tasks, dict) else ())
        if name.startswith("translation_") and isinstance(task, dict)
        if isinstance(task.get("prefix"), str)
    }
    if not told:
        return None
    asked = f"translation_{source}_to_{target}"
    if asked in told:
        return told[asked]
    for flag, language in (("--source", source), ("--target", target)):
        if language not in _LANGUAGES:
            raise option_error(flag, language, ", ".join(_LANGUAGES))
    return f"translate {_LANGUAGES[source]} to {_LANGUAGES[target]}:"
