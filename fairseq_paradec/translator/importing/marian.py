"""Reads a model that Marian trained: MODEL.npz, decoder.yml, and OPUS-MT's sentencepiece models.

Names of weights and settings are those of Marian's transformer.h; the layers are MarianMT's.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ...errors import option_error
from ...files import check_unpacked
from .files import known_form, whole_number
from .foreign import Foreign, learned_positions, options_of, sinusoids
from .vocabulary import marian_text, require_languages, words_of

#: Settings of which only one value is known.
_ONLY: Mapping[str, Any] = {
    "type": "transformer",
    "right-left": False,
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-ffn-depth": 2,
    "transformer-train-position-embeddings": False,
    "transformer-decoder-autoreg": "self-attention",
    "transformer-no-projection": False,
    "transformer-tied-layers": [],
    "input-types": [],
    "factors-combine": "sum",
    "layer-normalization": False,
}

_ACTIVATIONS = ("swish", "relu", "gelu")

#: Embeddings of the source and the target: one for both, or two.
_ONE, _TWO = ("Wemb", "Wemb"), ("encoder_Wemb", "decoder_Wemb")

#: Positions of the imported model; Marian computes as many as a sentence needs.
POSITIONS = 1024

#: fairseq's names of a sublayer's parts by Marian's: maps, and the norm behind them.
_ATTENTION = {
    "Wq": "q_proj.weight",
    "bq": "q_proj.bias",
    "Wk": "k_proj.weight",
    "bk": "k_proj.bias",
    "Wv": "v_proj.weight",
    "bv": "v_proj.bias",
    "Wo": "out_proj.weight",
    "bo": "out_proj.bias",
}
_FEED = {"W1": "fc1.weight", "b1": "fc1.bias", "W2": "fc2.weight", "b2": "fc2.bias"}


class SettingsLoader(yaml.SafeLoader):
    """Reads YAML without aliases, by which a few lines can be gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """As yaml, but for aliases."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "an alias", self.peek_event().start_mark)
        return super().compose_node(parent, index)


def read(file: Path, source: str | None = None, target: str | None = None) -> Foreign:
    """Read a model.

    Args:
        file: MODEL.npz. In its folder are source.spm, target.spm, and what decoder.yml names.
        source: the source language; None is an error.
        target: the target language; None is an error.

    Raises:
        UsageError: a file is missing or wrong, a setting is not known, or a language is missing.
    """
    pair = require_languages(source, target)
    weights, settings = _read_npz(file)
    _check(file, settings)
    width = whole_number(file, settings, "dim-emb")
    names = _vocabularies(file)
    is_one = settings.get("tied-embeddings-all") or settings.get("tied-embeddings-src")
    wanted = _ONE if is_one else _TWO
    embeddings = {name: _take(file, weights, name) for name in dict.fromkeys(wanted)}
    tables = [embeddings[name] for name in wanted]
    for name, table in embeddings.items():
        if table.ndim != 2 or table.shape[1] != width:
            given = f"{name} of size {table.shape}"
            raise option_error(str(file), given, f"vectors of {width} numbers, as dim-emb says")
    words = [words_of(_numbers(n), len(t), n) for n, t in zip(names, tables, strict=True)]
    model = Foreign(
        file=file,
        source=pair[0],
        target=pair[1],
        settings=_options(file, settings),
        layers=_layers(file, weights, settings),
        embeddings=(tables[0], tables[1], tables[1]),
        bias=_take(file, weights, "decoder_ff_logit_out_b").flatten(),
        start=None,
        **marian_text(file.parent, words, names, pair[1]),
    )
    for name in weights.keys() - {"Wpos"}:  # positions, which are no weights
        raise option_error(f"{file}: {name}", "an unknown weight", "those of known settings alone")
    return model


def _read_npz(file: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read weights and settings.

    Raises:
        UsageError: the file is missing, damaged, or has no settings.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            check_unpacked(archive, file)
        with np.load(file, allow_pickle=False) as content:
            arrays = {str(name): np.asarray(content[name]) for name in content}
    except Exception as error:  # zipfile and numpy raise many kinds
        raise option_error("MODEL", str(file), f"Marian's file .npz ({error})") from error
    stored = arrays.pop("special:model.yml", None)
    if stored is None:
        raise option_error("MODEL", str(file), "a file .npz of Marian, with special:model.yml")
    settings = _parse(file, stored.tobytes().rstrip(b"\0"), SettingsLoader)
    weights = {
        name: value.astype(np.float32) for name, value in arrays.items() if value.dtype.kind == "f"
    }
    return weights, settings


def _parse(file: Path, text: bytes, loader: Any) -> dict[str, Any]:
    """Parse YAML in UTF-8 that is a mapping."""
    try:
        content = yaml.load(text, Loader=loader)
    except Exception as error:  # yaml raises many kinds
        raise option_error(str(file), "damaged YAML", "a mapping of settings") from error
    if not isinstance(content, dict):
        raise option_error(str(file), f"a {type(content).__name__}", "a mapping of settings")
    return content


def _check(file: Path, settings: Mapping[str, Any]) -> None:
    """Refuse settings that are not known."""
    for key, only in _ONLY.items():
        if settings.get(key, only) != only:
            raise option_error(f"{file}: {key}", settings[key], repr(only))
    activation = settings.get("transformer-ffn-activation", "swish")
    if activation not in _ACTIVATIONS:
        allowed = ", ".join(_ACTIVATIONS)
        raise option_error(f"{file}: transformer-ffn-activation", activation, allowed)
    if not (settings.get("tied-embeddings-all") or settings.get("tied-embeddings")):
        allowed = "true: an output of the target embedding's vectors"
        raise option_error(f"{file}: tied-embeddings", False, allowed)


def _vocabularies(file: Path) -> tuple[Path, Path]:
    """Return the files of the vocabularies, which decoder.yml names."""
    decoder = file.with_name("decoder.yml")
    if not decoder.is_file():
        raise option_error("MODEL", str(file), "a model beside its decoder.yml, which is missing")
    names: Any = _parse(decoder, decoder.read_bytes(), SettingsLoader).get("vocabs")
    with known_form(decoder, "vocabs: two files, of source and target"):
        first, second = (file.with_name(Path(name).name) for name in names)
        return first, second


def _numbers(file: Path) -> dict[str, int]:
    """Read a vocabulary: the numbers of its words.

    Raises:
        UsageError: it is missing, or no mapping of words to numbers.
    """
    if not file.is_file():
        raise option_error(str(file.parent), file.name, "a folder with this file; it is missing")
    # BaseLoader leaves words such as "no" and "1" texts.
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    numbers = _parse(file, file.read_bytes(), loader)
    with known_form(file, "the number of each word"):
        return {word: int(number) for word, number in numbers.items()}


def _take(file: Path, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    """Take a weight out of the others.

    Raises:
        UsageError: it is not there, or neither a vector nor a matrix.
    """
    if name not in weights:
        raise option_error(str(file), f"no weight {name}", "a Transformer with all weights")
    weight = weights.pop(name)
    if weight.ndim not in (1, 2):
        raise option_error(f"{file}: {name}", weight.shape, "a size of one or two numbers")
    return weight


def _options(file: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return fairseq's options."""
    heads = whole_number(file, settings, "transformer-heads", 8)
    inner = whole_number(file, settings, "transformer-dim-ffn", 2048)
    depths = [whole_number(file, settings, f"{side}-depth") for side in ("enc", "dec")]
    sides = ("encoder", "decoder")
    return options_of(
        file,
        whole_number(file, settings, "dim-emb"),
        (depths[0], depths[1]),
        (heads, heads),
        (inner, inner),
        settings.get("transformer-ffn-activation", "swish"),
        POSITIONS,
        True,
        **{f"{side}_learned_pos": True for side in sides},
    )


def _layers(
    file: Path, weights: dict[str, np.ndarray], settings: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Take the weights of all layers and positions by fairseq's names; maps are transposed."""
    layers = learned_positions(sinusoids(POSITIONS, settings["dim-emb"]))
    for side, depth in (("encoder", settings["enc-depth"]), ("decoder", settings["dec-depth"])):
        for number in range(depth):
            for there, here in _layer_names(side).items():
                weight = _take(file, weights, f"{side}_l{number + 1}_{there}")
                is_map = len(weight) > 1  # biases and norms are 1×N
                weight = np.ascontiguousarray(weight.T) if is_map else weight.flatten()
                layers[f"{side}.layers.{number}.{here}"] = weight
    return layers


def _layer_names(side: str) -> dict[str, str]:
    """Return fairseq's names of a layer's weights by Marian's."""
    parts = {"self": "self_attn"} | ({"context": "encoder_attn"} if side == "decoder" else {})
    norms = {"scale": "weight", "bias": "bias"}
    names = {f"ffn_{old}": new for old, new in _FEED.items()}
    names |= {f"ffn_ffn_ln_{old}": f"final_layer_norm.{new}" for old, new in norms.items()}
    for part, name in parts.items():
        names |= {f"{part}_{old}": f"{name}.{new}" for old, new in _ATTENTION.items()}
        names |= {f"{part}_Wo_ln_{old}": f"{name}_layer_norm.{new}" for old, new in norms.items()}
    return names
