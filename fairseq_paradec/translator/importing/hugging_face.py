"""Reads a folder that Hugging Face's transformers saved: MarianMT, M2M-100, NLLB, mBART-50, T5."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import option_error
from ...model.architecture import POSITIONS
from ...model.weights import as_fp32
from . import t5
from .files import added_tokens, ordinary_tokens, read_json, read_weights, whole_number
from .foreign import NEVER, Foreign, learned_positions, options_of, sinusoids
from .generation import forbidden_of, left_out, search_of, settings_of
from .vocabulary import (
    M2M_100,
    check_pieces,
    language_token,
    marian_text,
    piece_words,
    require_languages,
    words_of,
)

#: Sizes that config.json names.
_NUMBERS = (
    "d_model",
    "encoder_layers",
    "decoder_layers",
    "encoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_attention_heads",
    "decoder_ffn_dim",
    "vocab_size",
    "max_position_embeddings",
)

#: fairseq's names of activations by theirs.
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish", "tanh": "tanh"}

#: The families by ``model_type`` of config.json: fairseq's options that all of a family have.
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "marian": {"encoder_learned_pos": True, "decoder_learned_pos": True},
    "m2m_100": {"encoder_normalize_before": True, "decoder_normalize_before": True},
    "mbart": {
        "encoder_normalize_before": True,
        "decoder_normalize_before": True,
        "encoder_learned_pos": True,
        "decoder_learned_pos": True,
        "layernorm_embedding": True,
    },
}


def read(folder: Path, source: str | None = None, target: str | None = None) -> Foreign:
    """Read a model.

    Raises:
        UsageError: a file is missing or wrong, the model is of another family, or a language is
            unknown.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise option_error("DIR", str(folder), "a folder with config.json, from save_pretrained")
    config = read_json(file)
    kind = config.get("model_type")
    if kind in t5.FAMILIES:
        return t5.read(file, config, source, target)
    if kind not in tuple(FAMILIES):
        raise option_error(f"{file}: model_type", kind, ", ".join([*FAMILIES, *t5.FAMILIES]))
    tokenizer = folder / "tokenizer_config.json"
    about = read_json(tokenizer) if tokenizer.is_file() else {}
    _check(file, config, about)
    source = source or about.get("source_lang") or about.get("src_lang")
    target = target or about.get("target_lang") or about.get("tgt_lang")
    pair = require_languages(source, target)
    generate, given = settings_of(file, config)
    absent = left_out(generate, config, given)
    weights_file, weights = read_weights(folder)
    tables = _tables(weights_file, config, weights)
    _check_tables(weights_file, config, tables)
    if type(absent) is int and absent in range(len(tables["bias"])):
        tables["bias"][absent] = NEVER
    words = _marian if kind == "marian" else _multilingual
    return Foreign(
        file=weights_file,
        source=pair[0],
        target=pair[1],
        settings=_options(file, config),
        search=search_of(generate, given),
        forbidden=forbidden_of(generate, config, given, len(tables["bias"])),
        layers=_layers(config, weights),
        start=config["decoder_start_token_id"],
        **tables,
        **words(folder, config, pair),
    )


def _check(file: Path, config: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Refuse models with settings that are not known."""
    for key in _NUMBERS:
        whole_number(file, config, key)
    whole_number(file, config, "decoder_vocab_size", config["vocab_size"])
    activation = config.get("activation_function")
    if activation not in tuple(_ACTIVATIONS):
        raise option_error(f"{file}: activation_function", activation, ", ".join(_ACTIVATIONS))
    start, end = (config.get(f"{name}_token_id") for name in ("decoder_start", "eos"))
    if type(start) is not int or (config["model_type"] != "marian" and start != end):
        allowed = f"a word's number; in M2M-100, NLLB and mBART-50 that of </s>, {end}"
        raise option_error(f"{file}: decoder_start_token_id", start, allowed)
    if about.get("tokenizer_class") in ("MBartTokenizer", "MBartTokenizerFast"):
        raise option_error(
            f"{file}: tokenizer_class",
            about["tokenizer_class"],
            "mBART-50, whose sources begin with the language; in mBART-25 they end with it",
        )
    if about.get("legacy_behaviour"):
        allowed = "false: a source begins with its language"
        raise option_error(f"{file}: legacy_behaviour", True, allowed)


def _options(file: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return fairseq's options."""
    return options_of(
        file,
        config["d_model"],
        (config["encoder_layers"], config["decoder_layers"]),
        (config["encoder_attention_heads"], config["decoder_attention_heads"]),
        (config["encoder_ffn_dim"], config["decoder_ffn_dim"]),
        _ACTIVATIONS[config["activation_function"]],
        config["max_position_embeddings"],
        bool(config.get("scale_embedding")),
        **FAMILIES[config["model_type"]],
    )


def _layers(config: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the weights that have fairseq's names but for ``model.``, and positions."""
    parts = (".layers.", ".layer_norm.", ".layernorm_embedding.")
    layers = {name: weight for name, weight in weights.items() if any(p in name for p in parts)}
    if config["model_type"] == "marian":
        made = sinusoids(config["max_position_embeddings"], config["d_model"])
        layers |= learned_positions(made)
    for side in ("encoder", "decoder"):
        name = f"{side}.embed_positions.weight"
        if name not in weights:
            continue
        table = as_fp32(weights[name])
        layers[name] = learned_positions(table)[name] if config["model_type"] == "marian" else table
    return layers


def _tables(
    file: Path, config: Mapping[str, Any], weights: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Return the embeddings and the bias; see Foreign."""
    is_tied = config.get("tie_word_embeddings", True)
    is_shared = config.get("share_encoder_decoder_embeddings", True)
    encoder, decoder = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
    shared = ("shared.weight", encoder, decoder) if is_shared else ()
    target = (decoder, *shared, *(("lm_head.weight",) if is_tied else ()))
    source = (encoder, *shared, *(target if is_shared else ()))
    output = ("lm_head.weight", *(target if is_tied else ()))
    tables = tuple(_first(file, weights, names) for names in (source, target, output))
    bias = weights.get("final_logits_bias")
    flat = np.zeros(len(tables[2]), np.float32) if bias is None else as_fp32(bias).flatten()
    return {"embeddings": tables, "bias": flat}


def _check_tables(file: Path, config: Mapping[str, Any], tables: Mapping[str, Any]) -> None:
    """Refuse sizes that the weights do not have, before anything of such a size is made.

    Raises:
        UsageError: embeddings have another width, or fewer words, than config.json says.
    """
    size = config["vocab_size"]
    for table, count in zip(
        tables["embeddings"], (size, *2 * [config.get("decoder_vocab_size") or size]), strict=True
    ):
        if table.ndim != 2 or len(table) < count or table.shape[1] != config["d_model"]:
            given = f"embeddings of size {table.shape}"
            allowed = f"({count}, {config['d_model']}), as config.json says"
            raise option_error(str(file), given, allowed)
    whole_number(file.with_name("config.json"), config, "max_position_embeddings", most=POSITIONS)


def _first(file: Path, weights: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Return the first of these weights that is there."""
    for name in names:
        if name in weights:
            return weights[name]
    raise option_error(str(file), f"no weight {names[0]}", "a file with all weights")


def _marian(folder: Path, config: Mapping[str, Any], pair: tuple[str, str]) -> dict[str, Any]:
    """Read the words of a MarianMT model: -> ``words``, ``pieces`` and ``before`` of Foreign."""
    is_shared = config.get("share_encoder_decoder_embeddings", True)
    files = (folder / "vocab.json", folder / ("vocab.json" if is_shared else "target_vocab.json"))
    sizes = (config["vocab_size"], config.get("decoder_vocab_size") or config["vocab_size"])
    words = [words_of(read_json(f), n, f) for f, n in zip(files, sizes, strict=True)]
    return marian_text((folder / "source.spm", folder / "target.spm"), words, files, pair[1])


def _multilingual(folder: Path, config: Mapping[str, Any], pair: tuple[str, str]) -> dict[str, Any]:
    """Read the words of a model with tokens of languages: as ``_marian``, and more."""
    pieces = folder / "sentencepiece.bpe.model"
    file = folder / "vocab.json"
    if file.is_file():
        plain = read_json(file)
    else:
        plain, file = piece_words(pieces), pieces
    added = added_tokens(folder, len(plain))
    if file.name == "vocab.json" and not any(token.startswith("__") for token in added):
        added |= {f"__{code}__": len(plain) + number for number, code in enumerate(M2M_100)}
    words = words_of(plain | added, config["vocab_size"], file)
    check_pieces(pieces, words, file)
    before, first = (
        language_token(flag, language, added)
        for flag, language in zip(("--source", "--target"), pair, strict=True)
    )
    text = ordinary_tokens(folder) - {first}
    return {
        "words": (words, words),
        "pieces": (pieces, pieces),
        "before": [before],
        "first": first,
        "dropped": [token for token in added if token not in text],
    }
