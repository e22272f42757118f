"""Reads a model that Marian trained: MODEL.npz or MODEL.bin, decoder.yml, and its vocabularies.

Names of weights and settings are those of Marian's transformer.h.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import option_error
from ...model.architecture import FIRST_POSITION, LAYERS
from ...model.model import sinusoids
from .files import known_form, whole_number
from .foreign import Foreign, learned_positions, options_of
from .marian_files import MarianFile, models_of
from .marian_text import parse, text_of, vocabularies
from .vocabulary import require_languages

#: Settings of which only these values are known.
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "right-left": (False,),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-ffn-activation": ("swish", "relu", "gelu"),
    "transformer-pool": (False,),
    "transformer-attention-mask": ("default",),
    "transformer-disable-position-embeddings": (False,),
    "ulr": (False,),
    "input-types": ([], ["sequence", "sequence"]),
    "factors-combine": ("sum",),
    "lemma-dim-emb": (0,),
}
#: Steps before and after a sublayer, without dropout: norms behind a sum, or in front.
_POST, _PRE = ("", "an"), ("n", "a")

#: Marian's first version known to norm keys and values, too, in pre-norm self-attention.
_NORMED = (1, 12, 42)
#: Its last version of an older GELU.
_OLD = (1, 12, 0)
#: That is x * sigmoid(1.702 x), which is folded into swish.
_SIGMOID = 1.702

#: Embeddings of the source and the target: one for both, or two.
_ONE, _TWO = ("Wemb", "Wemb"), ("encoder_Wemb", "decoder_Wemb")
#: The output's vectors where they are no embeddings; older versions have them transposed.
_OUTPUT = "decoder_ff_logit_out"
#: Positions that were trained, where one of these settings says that they are read.
_TRAINED = "Wpos"
_TRAINING = ("transformer-train-positions", "transformer-train-position-embeddings")

#: Positions of the imported model; Marian computes as many as a sentence needs.
POSITIONS = 1024

#: fairseq's names of a sublayer's parts by Marian's: maps, and the norm behind or before them.
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
_NORM = {"scale": "weight", "bias": "bias"}


def read(given: Path, source: str | None = None, target: str | None = None) -> Foreign:
    """Read a model.

    Args:
        given: MODEL.npz, MODEL.bin, or the folder of one. In it are the vocabularies that
            decoder.yml names, and source.spm and target.spm, or source.bpe, if those split no text.
        source: the source language; None is an error.
        target: the target language; None is an error.

    Raises:
        UsageError: a file is missing or wrong, a setting is not known, or a language is missing.
    """
    found = models_of(given)
    if not found:
        raise option_error("MODEL", str(given), "MODEL.npz or MODEL.bin of Marian, or its folder")
    if len(found) > 1:
        several = f"{given} with {', '.join(file.name for file in found)}"
        raise option_error("MODEL", several, "one of them: a folder has one model, or name it")
    file, pair = found[0], require_languages(source, target)
    with known_form(file, "Marian's file .npz, or .bin, undamaged"):
        weights = MarianFile(file)
        model = _Model(weights, parse(file, weights.settings))
        tables, layers = model.tables(), model.layers()
        bias = model.bias(len(tables[2]))
        options = model.options(layers)
    for name in weights.left():
        if name != _TRAINED:
            allowed = "those of known settings alone"
            raise option_error(f"{file}: {name}", "an unknown weight", allowed)
    text, notes = text_of(vocabularies(file), (len(tables[0]), len(tables[1])), *pair)
    return Foreign(
        file=file,
        source=pair[0],
        target=pair[1],
        settings=options,
        layers=layers,
        embeddings=tables,
        bias=bias,
        start=None,
        notes=(*weights.notes(), *notes),
        **text,
    )


class _Model:
    """A file's weights by fairseq's names.

    Args:
        weights: of the file.
        settings: of it.

    Raises:
        UsageError: a setting is not known.
    """

    def __init__(self, weights: MarianFile, settings: Mapping[str, Any]) -> None:
        self._weights, self._given, self._file = weights, settings, weights.file
        for key, only in _ONLY.items():
            if settings.get(key, only[0]) not in only:
                allowed = ", ".join(map(repr, only))
                raise option_error(f"{self._file}: {key}", settings[key], allowed)
        version = re.match(r"v?(\d+)\.(\d+)\.(\d+)", str(settings.get("version")))
        self._version = (0,) if version is None else tuple(map(int, version.groups()))
        self._pre_norm, self._top, self._first = self._norms()
        self._width = self._number("dim-emb")
        self._depths = self._number("enc-depth"), self._number("dec-depth")
        self._trained = _TRAINED in weights and any(settings.get(name) for name in _TRAINING)
        activation = settings.get("transformer-ffn-activation", "swish")
        self._fold = _SIGMOID if activation == "gelu" and self._version <= _OLD else 1.0
        # The exact GELU is named gelu by fairseq; fairseq's gelu_accurate is none.
        self._activation = "swish" if self._fold != 1 else activation

    def _number(self, key: str, default: Any = None) -> int:
        """Return a setting that is a whole number."""
        most = LAYERS - 1 if key.endswith("-depth") else 1 << 24
        return whole_number(self._file, self._given, key, default, most)

    def _norms(self) -> tuple[bool, bool, bool]:
        """Return whether norms come before sublayers, behind the layers, and behind embeddings."""
        defaults = {"preprocess": "", "postprocess": "dan", "postprocess-emb": "d"}
        names = (*defaults, "postprocess-top")
        given = [self._given.get(f"transformer-{n}", defaults.get(n, "")) for n in names]
        before, after, first, top = (str(steps).replace("d", "") for steps in given)
        is_pre = (before, after) == _PRE
        is_known = (is_pre or (before, after) == _POST) and first in ("", "n")
        if not is_known or top not in (("", "n") if is_pre else ("",)):
            said = ", ".join(f"{n}: {own!r}" for n, own in zip(names, given, strict=True))
            allowed = "postprocess: 'dan', or preprocess: 'n', postprocess: 'da', with or without "
            allowed += "postprocess-top: 'n'; postprocess-emb: 'd' or 'nd'"
            raise option_error(f"{self._file}: transformer-", said, allowed)
        if is_pre and self._version < _NORMED:
            version = str(self._given.get("version")).split(" ")[0]
            allowed = "1.12.42 or later with preprocess: 'n'; keys of earlier ones may have no norm"
            raise option_error(f"{self._file}: version", version, allowed)
        return is_pre, top == "n", first == "n"

    def tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the vectors of sources, targets and the output, V×D each."""
        given, take = self._given, self._weights.take
        is_all = given.get("tied-embeddings-all")
        wanted = _ONE if is_all or given.get("tied-embeddings-src") else _TWO
        taken = {name: take(name) for name in dict.fromkeys(wanted)}
        source, target = (taken[name] for name in wanted)
        if is_all or given.get("tied-embeddings"):
            output = target
        elif f"{_OUTPUT}_Wt" in self._weights:
            output = taken[f"{_OUTPUT}_Wt"] = take(f"{_OUTPUT}_Wt")
        else:
            output = taken[f"{_OUTPUT}_W"] = take(f"{_OUTPUT}_W").T
        for name, table in taken.items():
            if table.ndim != 2 or table.shape[1] != self._width:
                allowed = f"vectors of {self._width} numbers, as dim-emb says"
                raise option_error(str(self._file), f"{name} of size {table.shape}", allowed)
        return source, target, output

    def bias(self, size: int) -> np.ndarray:
        """Return the bias of an output of ``size`` words, V."""
        if self._given.get("output-omit-bias"):
            return np.zeros(size, np.float32)
        return self._weights.take(f"{_OUTPUT}_b").flatten()

    def layers(self) -> dict[str, np.ndarray]:
        """Return the weights of all layers and positions; maps are transposed."""
        layers: dict[str, np.ndarray] = {}
        tied = self._given.get("transformer-tied-layers") or range(1, self._depths[1] + 1)
        known = range(1, self._depths[1] + 1)
        is_list = isinstance(tied, range) or (type(tied) is list and len(tied) == len(known))
        if not is_list or not all(type(number) is int and number in known for number in tied):
            allowed = f"a number from 1 to {len(known)} for each of the decoder's layers"
            raise option_error(f"{self._file}: transformer-tied-layers", tied, allowed)
        for side, numbers in (("encoder", range(1, self._depths[0] + 1)), ("decoder", tied)):
            for at, number in enumerate(numbers):
                layers |= self._layer(side, f"{side}_l{number}", f"{side}.layers.{at}")
                self._weights.check_size(sum(weight.nbytes for weight in layers.values()))
            if self._top:
                layers |= self._norm(f"{side}_top", f"{side}.layer_norm", "")
            if self._first:
                layers |= self._norm(f"{side}_emb", f"{side}.layernorm_embedding", "_pre")
        if self._trained:
            return layers | learned_positions(self._weights.take(_TRAINED))
        self._weights.check_size(8 * POSITIONS * self._width)
        return layers | learned_positions(sinusoids(np.arange(POSITIONS), self._width))

    def _layer(self, side: str, there: str, here: str) -> dict[str, np.ndarray]:
        """Take a layer's weights."""
        suffix = "_pre" if self._pre_norm else ""
        parts = {"self": "self_attn"} | ({"context": "encoder_attn"} if side == "decoder" else {})
        no_output = bool(self._given.get("transformer-no-projection"))
        taken: dict[str, np.ndarray] = {}
        for part, name in parts.items():
            for old, new in _ATTENTION.items():
                if not (no_output and old in ("Wo", "bo")):
                    taken[f"{here}.{name}.{new}"] = self._map(f"{there}_{part}_{old}")
            if no_output:
                taken[f"{here}.{name}.out_proj.weight"] = np.eye(self._width, dtype=np.float32)
                taken[f"{here}.{name}.out_proj.bias"] = np.zeros(self._width, np.float32)
            taken |= self._norm(f"{there}_{part}_Wo", f"{here}.{name}_layer_norm", suffix)
        for old, new in _FEED.items():
            taken[f"{here}.{new}"] = self._map(f"{there}_ffn_{old}")
        if self._fold != 1:  # x * sigmoid(F * x) is swish(F * x) / F
            for name, factor in (("fc1.weight", 1), ("fc1.bias", 1), ("fc2.weight", -1)):
                taken[f"{here}.{name}"] *= np.float32(self._fold**factor)
        return taken | self._norm(f"{there}_ffn_ffn", f"{here}.final_layer_norm", suffix)

    def _map(self, name: str) -> np.ndarray:
        """Take a map, transposed, or a bias, which is 1×N."""
        weight = self._weights.take(name)
        is_map = name.rsplit("_", 1)[1].startswith("W")
        return np.ascontiguousarray(weight.T) if is_map else weight.flatten()

    def _norm(self, there: str, here: str, suffix: str) -> dict[str, np.ndarray]:
        """Take a norm."""
        return {
            f"{here}.{new}": self._weights.take(f"{there}_ln_{old}{suffix}").flatten()
            for old, new in _NORM.items()
        }

    def options(self, layers: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return fairseq's options."""
        heads = self._number("transformer-heads", 8)
        inner = self._number("transformer-dim-ffn", 2048)
        name = "transformer-decoder-dim-ffn"
        own = self._number(name) if self._given.get(name) else inner
        positions = len(layers["encoder.embed_positions.weight"]) - FIRST_POSITION
        more: dict[str, Any] = {}
        for side in ("encoder", "decoder"):
            more[f"{side}_learned_pos"] = True
            more[f"{side}_normalize_before"] = self._pre_norm
            more[f"no_{side}_final_norm"] = self._pre_norm and not self._top
        return options_of(
            self._file,
            self._width,
            self._depths,
            (heads, heads),
            (inner, own),
            self._activation,
            positions,
            not self._trained,
            layernorm_embedding=self._first,
            **more,
        )
