"""A model: what its weights mean, and the weights by fairseq's names, as numpy's arrays."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UsageError, shown
from ..target_order import TargetOrder
from . import checkpoint, file
from .architecture import FIRST_POSITION, Architecture, Heads, Layers
from .dictionary import Dictionary
from .settings import Vocabularies, architecture_of

#: Weights of fairseq's that are no weights: versions, and what older versions saved of sinusoids.
_NO_WEIGHTS = ("version", "_float_tensor", "embed_positions.weights")
#: So many positions are computed at once, in 64 bits.
_ROWS = 4096
#: Of which types weights may be.
_NUMBERS = [checkpoint.DTYPES[name] for name in ("float16", "bfloat16", "float32", "float64")]
#: Of the names of heads' weights.
HEADS = "decoder.heads."


class HeadWeights(NamedTuple):
    """Prediction heads on their own."""

    record: Heads
    weights: Mapping[str, np.ndarray]  # ``inner.weight``, ``inner.bias``, ``outer``, ``bias``

    @property
    def block_size(self) -> int:
        """How many tokens they predict from a state."""
        return self.record.size


class Model:
    """An architecture, its weights, and its vocabularies.

    Args:
        architecture: what the weights mean.
        weights: fp32, by fairseq's names; those of ties come once.
        source: the source vocabulary; None: nobody asks for it.
        target: the target vocabulary.
        path: where it was read from, for messages.
        state: returns what differs when weights have changed; None: they never do.
    """

    def __init__(
        self,
        architecture: Architecture,
        weights: Mapping[str, np.ndarray],
        source: Dictionary | None = None,
        target: Dictionary | None = None,
        path: str = "",
        state: Callable[[], Any] | None = None,
    ) -> None:
        self.architecture, self.weights = architecture, weights
        self.source, self.target, self.path = source, target, path
        self._state, self._ties = state, architecture.ties()
        #: Whether nobody changes its weights any more.
        self.lasts = state is None

    @classmethod
    def read(
        cls,
        path: str | Path,
        source: Dictionary,
        target: Dictionary,
        base: "Model | None" = None,
    ) -> "Model":
        """Read a model file, or a checkpoint of fairseq's or this package's; weights become fp32.

        Args:
            path: the file.
            source: the source vocabulary.
            target: the target vocabulary.
            base: the verifier, whose encoder a drafter gets that was saved without one; heads
                that were saved without their base keep theirs alone.

        Raises:
            UsageError: it is damaged, its settings are of no model that the record describes, its
                weights are those of another model, or it was trained on another base.
            OSError: it cannot be read.
        """
        sizes = Vocabularies(len(source), len(target))
        is_checkpoint = checkpoint.is_archive(path)
        content = checkpoint.read(path).content if is_checkpoint else None
        try:
            if is_checkpoint:
                architecture, weights = _read(content, sizes, base)
                return cls(architecture, weights, source, target, str(path))
            architecture, given, digits = file.read(path)
            weights = _checked_file(architecture, given, digits, sizes)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error
        model = cls(architecture, weights, source, target, str(path))
        if digits is not None:
            model.hash = digits
        return model

    def save(self, path: Path, packed_only: bool = False) -> None:
        """Write a model file.

        Args:
            path: the file.
            packed_only: without the weights of layers' maps, which files of packed maps hold.
        """
        weights = {n: w for n, w in self.weights.items() if not (packed_only and is_map(n, w))}
        file.write(path, self.architecture, weights, self.hash if packed_only else None)

    # ---- weights -------------------------------------------------------------------------------

    def weight(self, name: str) -> np.ndarray:
        """Return a weight by any of its names."""
        return self.weights[self._ties.get(name, name)]

    def layers(self, side: str) -> Layers:
        """Return the layers of ``encoder`` or ``decoder``, which it has."""
        if side == "decoder":
            return self.architecture.decoder
        assert self.architecture.encoder is not None
        return self.architecture.encoder

    def embeddings(self, side: str) -> tuple[np.ndarray, float]:
        """Return the vectors of a side's words, and their scale; a mask follows the words."""
        words, scale = self.weight(f"{side}.embed_tokens.weight"), self.layers(side).scale
        if side == "encoder" or self.architecture.block is None:
            return words, scale
        mask = self.weight("decoder.mask_vector")
        return np.concatenate((np.float32(scale) * words, mask[None])), 1.0

    def source_width(self) -> int:
        """Return the width of an encoder's states, C."""
        return self.architecture.source_width

    @property
    def is_packed_only(self) -> bool:
        """Whether files of packed maps hold the weights that are not here."""
        return len(self.weights) < len(self.architecture.shapes())

    def state(self) -> Any:
        """Return what is equal as long as no weight changes."""
        return None if self._state is None else self._state()

    @cached_property
    def hash(self) -> str:
        """What ``digest`` returned when it was first asked for, or what a file says."""
        return self.digest()

    def digest(self) -> str:
        """Return the first 16 hex digits of the SHA-256 of names, types, shapes and values."""
        digest = hashlib.sha256()
        alone = self.is_heads
        for name, weight in sorted(self.weights.items()):
            name = name.removeprefix(HEADS) if alone else name
            digest.update(f"{name} torch.{weight.dtype.name} {weight.shape}\n".encode())
            digest.update(np.ascontiguousarray(weight).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()[:16]

    # ---- what methods ask ----------------------------------------------------------------------

    def eval(self) -> None:
        """Do nothing: it never trains."""

    @property
    def is_heads(self) -> bool:
        """Whether it is prediction heads alone."""
        return all(name.startswith(HEADS) for name in self.weights)

    @property
    def block_heads(self) -> HeadWeights | None:
        """Its prediction heads, or None."""
        record = self.architecture.heads
        if record is None:
            return None
        names = ("inner.weight", "inner.bias", "outer", "bias")
        return HeadWeights(record, {name: self.weight(HEADS + name) for name in names})

    def max_positions(self) -> tuple[int, int]:
        """Return the lengths of the longest source and output, with ``</s>``."""
        encoder = self.architecture.encoder
        return 0 if encoder is None else encoder.most, self.max_decoder_positions()

    def max_decoder_positions(self) -> int:
        """Return the length of the longest output, with ``</s>``: a number of whole steps."""
        most, step = self.architecture.decoder.most, self.architecture.tokens_per_step
        return most // step * step

    @property
    def target_order(self) -> TargetOrder | None:
        """The order of its targets; None: a plain Transformer's, left to right."""
        is_reordered = self.architecture.kind == "reordered"
        return self.architecture.target_order if is_reordered else None

    @property
    def block_size(self) -> int | None:
        """The block size of a drafter of blocks, in training; None: it is none."""
        block = self.architecture.block
        return None if block is None else block.size

    @property
    def first_target_token(self) -> str | None:
        """The word that its outputs begin with, or None."""
        return self.architecture.first_target_token

    @property
    def shares_encoder(self) -> bool:
        """Whether its encoder is its verifier's."""
        return self.architecture.shares_encoder

    def masks(self, size: int) -> int:
        """Return how many masks a drafter of blocks fills to draft so many tokens."""
        block = self.architecture.block
        return size if block is None or block.is_random else max(size, block.size)

    # ---- positions -----------------------------------------------------------------------------

    def positions(self, side: str) -> np.ndarray | None:
        """Return the vectors of a side's positions from 0 on, P×D; None: it has none."""
        architecture, layers = self.architecture, self.layers(side)
        if layers.positions is None:
            return None
        if side == "decoder" and architecture.slots is not None:
            return self._slot_positions()
        if layers.positions == "learned":
            return self.weight(f"{side}.embed_positions.weight")[FIRST_POSITION:]
        return sinusoids(np.arange(FIRST_POSITION, FIRST_POSITION + layers.most), layers.dim)

    def _slot_positions(self) -> np.ndarray:
        """Return the vectors of an order's slots, with what replaces start symbols."""
        architecture, name = self.architecture, "decoder.embed_positions"
        decoder, slots = architecture.decoder, architecture.slots
        assert slots is not None
        numbers = architecture.slot_positions(decoder.most)
        if decoder.positions == "learned":
            rows = self.weight(f"{name}.learned.weight")[numbers]
        else:
            rows = sinusoids(numbers, decoder.dim)
        if slots.directions:
            rows = (
                rows
                + self.weight(f"{name}.directions.weight")[
                    np.arange(decoder.most) % slots.directions
                ]
            )
        if slots.starts != "tokens":
            symbols = architecture.start_symbols()
            words = self.weight("decoder.embed_tokens.weight")[symbols]
            first = rows[: slots.step] - np.float32(decoder.scale) * words
            if slots.starts == "learned":
                first = first + self.weight(f"{name}.starts")
            rows = np.concatenate((first, rows[slots.step :]))
        return rows


def sinusoids(positions: np.ndarray, dim: int) -> np.ndarray:
    """Return fairseq's sinusoids of whole positions, also negative ones: P -> P×D, fp32.

    They are those of fp32 angles, rounded correctly; torch's differ in the last bit by processor.
    """
    half = dim // 2
    if len(positions) > _ROWS:
        starts = range(0, len(positions), _ROWS)
        return np.concatenate([sinusoids(positions[n : n + _ROWS], dim) for n in starts])
    step = np.float32(-(math.log(10000) / max(half - 1, 1)))
    scale = np.exp((np.arange(half, dtype=np.float32) * step).astype(np.float64))
    angles = positions.astype(np.float32)[:, None] * scale.astype(np.float32)
    table = np.zeros((len(positions), dim), np.float32)
    table[:, :half] = np.sin(angles.astype(np.float64))
    table[:, half : 2 * half] = np.cos(angles.astype(np.float64))
    return table


def is_map(name: str, weight: np.ndarray) -> bool:
    """Return whether a weight is that of a layer's map, which can be packed alone."""
    return ".layers." in name and weight.ndim == 2


def _checked_file(
    architecture: Architecture,
    given: dict[str, np.ndarray],
    digits: str | None,
    words: Vocabularies,
) -> dict[str, np.ndarray]:
    """Return the weights of a model file, which has all, or those that are not packed alone."""
    own = Vocabularies(architecture.source_words, architecture.target_words)
    if own != words:
        raise UsageError(
            f"vocabularies: got {words.source} and {words.target} words; allowed: "
            f"{own.source} and {own.target}, as the model has"
        )
    wanted = architecture.shapes()
    if digits is not None:
        wanted = {n: s for n, s in wanted.items() if not (".layers." in n and len(s) == 2)}
    elif given and all(name.startswith(HEADS) for name in given):  # heads alone
        wanted = {name: shape for name, shape in wanted.items() if name.startswith(HEADS)}
    _check_sizes(given, wanted)
    return {name: as_fp32(given[name]) for name in wanted}


# ---- checkpoints --------------------------------------------------------------------------------


def _read(
    content: Any, words: Vocabularies, base: Model | None
) -> tuple[Architecture, dict[str, np.ndarray]]:
    """Return what a checkpoint holds; see ``Model.read``."""
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise UsageError("got no model; allowed: a checkpoint of fairseq-train")
    part = checkpoint.settings(content.get("cfg")).get("model") or content.get("args")
    architecture = architecture_of(part, words)
    architecture = _without_last_norms(architecture, content["model"])
    given = _upgraded(content["model"], architecture)
    side = architecture.encoder
    wanted = architecture.shapes()
    if side is not None and "encoder.embed_tokens.weight" not in given:
        marks = [name for name in given if not name.startswith(HEADS)]
        if architecture.heads is not None:  # heads alone
            given, wanted = _beside(given, wanted, marks, base, HEADS)
        elif architecture.shares_encoder:
            marks = [name for name in marks if name.startswith("encoder.")]
            given, wanted = _beside(given, wanted, marks, base, "decoder.")
    _check_sizes(given, wanted)
    return architecture, {name: as_fp32(given[name]) for name in wanted}


def _beside(
    given: dict[str, Any],
    wanted: dict[str, tuple[int, ...]],
    marks: list[str],
    base: Model | None,
    own: str,
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Return what a drafter or heads have of their own, and its shapes; ``marks`` are the base's.

    Raises:
        UsageError: the base is another one, or is not given.
    """
    for name in marks:
        theirs = None if base is None else base.weights.get(name)
        mine = given.pop(name)
        fits = isinstance(mine, np.ndarray) and mine.dtype in _NUMBERS
        # Files in half precision are as near as this.
        if (
            theirs is None
            or not fits
            or theirs.shape != mine.shape
            or not np.allclose(theirs, as_fp32(mine), rtol=4e-3, atol=1e-4)
        ):
            what = "a set of heads alone" if own == HEADS else "a drafter without its encoder"
            allowed = "those of this one" if base else "--drafter-path with it, beside its model"
            raise UsageError(
                f"got {what}{', of another model' if base else ''}; allowed: {allowed}"
            )
    shapes = {name: shape for name, shape in wanted.items() if name.startswith(own)}
    if own == "decoder." and base is not None:
        encoder = {n: w for n, w in base.weights.items() if n.startswith("encoder.")}
        shapes = wanted
        given = given | encoder
    return given, shapes


def _check_sizes(given: Mapping[str, Any], wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse weights that are missing, unknown, or of other sizes than the settings say."""
    for name in [*given, *wanted]:
        if name not in wanted:
            raise UsageError(f"got {shown(name)}; allowed: the weights of its settings alone")
        weight = given.get(name)
        if not isinstance(weight, np.ndarray) or weight.dtype not in _NUMBERS:
            raise UsageError(f"{name}: got {_kind_of(weight)}; allowed: numbers in 16 to 64 bits")
        if weight.shape != wanted[name]:
            raise UsageError(f"{name}: got {weight.shape}; allowed: {wanted[name]}, by settings")


def _kind_of(weight: Any) -> str:
    """Say what lies in the place of a weight."""
    if weight is None:
        return "none"
    return weight.dtype.name if isinstance(weight, np.ndarray) else type(weight).__name__


def as_fp32(weight: np.ndarray) -> np.ndarray:
    """Widen a weight, or round one of 64 bits."""
    if weight.dtype == checkpoint.BFLOAT16:
        words = weight["bfloat16"].astype(np.uint32) << np.uint32(16)
        return words.view(np.float32)
    with np.errstate(over="ignore"):
        return weight.astype(np.float32, copy=False)


def _without_last_norms(architecture: Architecture, weights: Mapping[Any, Any]) -> Architecture:
    """Leave out norms behind the layers that older versions of fairseq did not have.

    Decoders of version 2 have it, where it is there; encoders of that version have it.
    """
    sides = {"encoder": architecture.encoder, "decoder": architecture.decoder}
    for side, layers in sides.items():
        if layers is None or f"{side}.embed_tokens.weight" not in weights:
            continue
        version = weights.get(f"{side}.version")
        number = 1.0
        if isinstance(version, np.ndarray) and version.size == 1 and version.dtype.kind == "f":
            number = float(version.reshape(()))
        has_norm = f"{side}.layer_norm.weight" in weights and version is not None
        if number < 2 or (side == "decoder" and number <= 2):
            kept = layers.final_norm and side == "decoder" and has_norm
            layers = replace(layers, final_norm=kept)
        sides[side] = layers
    decoder = sides["decoder"]
    assert decoder is not None
    return replace(architecture, encoder=sides["encoder"], decoder=decoder)


def _upgraded(weights: Mapping[Any, Any], architecture: Architecture) -> dict[str, Any]:
    """Return weights by the names of fairseq 0.12, as it upgrades older ones; ties come once."""
    given: dict[str, Any] = {}
    for name, weight in weights.items():
        if type(name) is not str:
            raise UsageError(f"got a weight named {shown(name)}; allowed: names")
        if name.endswith(_NO_WEIGHTS):
            continue
        for new, part in _renamed(name, weight):
            given[new] = part
    output = given.pop("decoder.embed_out", None)
    if output is not None:
        given.setdefault("decoder.output_projection.weight", output)
    for name, other in architecture.ties().items():  # of names that differ the last one counts
        tied = given.pop(name, None)
        if tied is not None:
            given[other] = tied
    return given


def _renamed(name: str, weight: Any) -> list[tuple[str, Any]]:
    """Return the newer names of a weight, and their parts of it."""
    start, _, last = name.rpartition(".in_proj_")
    if start and isinstance(weight, np.ndarray) and weight.ndim and len(weight) % 3 == 0:
        size = len(weight) // 3
        thirds = [weight[size * n : size * (n + 1)] for n in range(3)]
        return [(f"{start}.{p}_proj.{last}", w) for p, w in zip("qkv", thirds, strict=True)]
    layer, _, rest = name.partition(".layer_norms.")
    if rest:
        norms = ["self_attn_layer_norm", "final_layer_norm"]
        if name.startswith("decoder."):
            norms.insert(1, "encoder_attn_layer_norm")
        number, _, last = rest.partition(".")
        if number.isdecimal() and int(number[:2]) < len(norms):
            return [(f"{layer}.{norms[int(number[:2])]}.{last}", weight)]
    return [(name, weight)]
