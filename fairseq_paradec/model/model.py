"""A model: what its weights mean, and the weights by fairseq's names, as numpy's arrays."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError, shown
from ..files import Checked
from ..target_order import TargetOrder
from . import checkpoint, file
from .architecture import FIRST_POSITION, Architecture, Heads, Layers
from .dictionary import Dictionary
from .relative import biases_by_distance
from .settings import Vocabularies, architecture_of
from .weights import Weights, as_fp32, stored

#: Weights of fairseq's that are no weights: versions, and what older versions saved of sinusoids.
_NO_WEIGHTS = ("version", "_float_tensor", "embed_positions.weights")
#: So many positions are computed at once, in 64 bits.
_ROWS = 4096
#: Of which types weights may be.
_NUMBERS = [checkpoint.DTYPES[name] for name in ("float16", "bfloat16", "float32", "float64")]
#: In a checkpoint of an earlier version: the hash of weights whose maps are packed alone.
PACKED_ONLY = "packed_only"
#: What torch needs of a model whose maps are packed alone, in words.
PACKED_ALONE = "torch's weights; this model folder holds them packed alone"
#: Of the names of heads' weights.
HEADS = "decoder.heads."


@dataclass(frozen=True, eq=False)
class HeadWeights:
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
        marks: by which its base is known, if it was saved without it: some of the base's weights.
        is_packed_only: whether files of packed maps hold the weights that are not here.
    """

    def __init__(
        self,
        architecture: Architecture,
        weights: Mapping[str, np.ndarray],
        source: Dictionary | None = None,
        target: Dictionary | None = None,
        path: str = "",
        state: Callable[[], Any] | None = None,
        marks: Mapping[str, np.ndarray] | None = None,
        is_packed_only: bool = False,
    ) -> None:
        self.architecture, self.weights = architecture, weights
        self.marks, self.is_packed_only = marks or {}, is_packed_only
        self.source, self.target, self.path = source, target, path
        self._state, self._ties = state, architecture.ties()
        #: Whether nobody changes its weights any more.
        self.lasts = state is None
        #: Its file, if the hash of that is known.
        self.checked: Checked | None = None
        #: The languages of its training, as a checkpoint says them.
        self.languages: tuple[str | None, str | None] = (None, None)

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
                weights are those of another model, it was trained on another base, or one set of
                vectors stands for the words of two vocabularies.
            OSError: it cannot be read.
        """
        words = Vocabularies(len(source), len(target))
        is_checkpoint = checkpoint.is_archive(path)
        content = checkpoint.read(path).content if is_checkpoint else None
        try:
            found = _of_checkpoint(content, words) if is_checkpoint else _of_file(path, words)
            architecture, given, digits = found
            if architecture.shared == "all" and source != target:
                raise UsageError(
                    "dictionaries: got two that differ; allowed: the same words in the same order, "
                    "for source and target share their vectors"
                )
            only = digits is not None
            weights, marks = _fitted(architecture, given, only, base)
        except UsageError as error:
            raise type(error)(f"{path}: {error}") from error
        model = cls(architecture, weights, source, target, str(path), None, marks, only)
        if digits is not None:
            model.hash = digits
        if is_checkpoint:
            model.languages = checkpoint.languages(content)
        return model

    def save(self, path: Path, packed_only: bool = False) -> None:
        """Write a model file; one without its base's weights, if it was read from such.

        Args:
            path: the file.
            packed_only: without the weights of layers' maps, which files of packed maps hold.
        """
        weights = dict(stored(self.weights))
        if self.marks:
            weights = {n: w for n, w in weights.items() if not n.startswith("encoder.")}
        if packed_only:
            weights = {n: w for n, w in weights.items() if not is_map(n, w.shape)}
        digits = self.hash if packed_only else None
        file.write(path, self.architecture, weights | dict(self.marks), digits)

    # ---- weights -------------------------------------------------------------------------------

    def weight(self, name: str) -> np.ndarray:
        """Return a weight by any of its names."""
        return self.weights[self._ties.get(name, name)]

    def has(self, name: str) -> bool:
        """Return whether it has a weight of a name."""
        return self._ties.get(name, name) in self.weights

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
    def encodes(self) -> bool:
        """Whether its encoder is here or packed; else it is its base's, which is packed alone."""
        own = self.architecture.encoder is not None
        return own and (self.is_packed_only or "encoder.layers.0.fc1.weight" in self.weights)

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

    @cached_property
    def block_heads(self) -> HeadWeights | None:
        """Its prediction heads, always the same, or None; a module's are of the module itself."""
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

    def relative_bias(self, side: str) -> np.ndarray | None:
        """Return a side's biases of attention by distance; see ``biases_by_distance``."""
        relative = self.layers(side).relative
        if relative is None:
            return None
        weight = self.weight(f"{side}.relative_bias.weight")
        return biases_by_distance(weight, relative, side == "encoder")

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


def is_map(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a weight is that of a layer's map, which can be packed alone."""
    return ".layers." in name and len(shape) == 2


# ---- files --------------------------------------------------------------------------------------

#: What a file holds: the record, weights, and the hash of all, if those of maps are packed alone.
_Found = tuple[Architecture, dict[str, Any], str | None]


def _of_file(path: str | Path, words: Vocabularies) -> _Found:
    """Return what a model file holds."""
    found = file.read(path)
    _check_words(Vocabularies(found[0].source_words, found[0].target_words), words)
    return found


def _check_words(own: Vocabularies, words: Vocabularies) -> None:
    """Refuse dictionaries of other sizes than a model's."""
    if own != words:
        raise UsageError(
            f"vocabularies: got {words.source} and {words.target} words; allowed: "
            f"{own.source} and {own.target}, as the model has"
        )


def _of_checkpoint(content: Any, words: Vocabularies) -> _Found:
    """Return what a checkpoint holds."""
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise UsageError("got no model; allowed: a checkpoint of fairseq-train")
    part = checkpoint.settings(content.get("cfg")).get("model") or content.get("args")
    architecture = architecture_of(part, words)
    architecture = _without_last_norms(architecture, content["model"])
    given, digits = _upgraded(content["model"], architecture), None
    sizes = []
    for side, size in zip(("encoder", "decoder"), words, strict=True):
        table = given.get(f"{side}.embed_tokens.weight")
        sizes.append(len(table) if isinstance(table, np.ndarray) and table.ndim == 2 else size)
    _check_words(Vocabularies(*sizes), words)
    if PACKED_ONLY in content:
        about = content[PACKED_ONLY]
        digits = about.get("hash") if isinstance(about, dict) else None
        if type(digits) is not str:
            raise UsageError(f"{PACKED_ONLY}: got {shown(about)}; allowed: the hash of all weights")
    return architecture, given, digits


def _fitted(
    architecture: Architecture, given: dict[str, Any], packed_only: bool, base: Model | None
) -> tuple[Weights, dict[str, np.ndarray]]:
    """Return the weights that a model has, in fp32, and the marks of its base; see ``Model``.

    Args:
        architecture: what they mean.
        given: those of its file.
        packed_only: whether those of maps are packed alone.
        base: see ``Model.read``.
    """
    wanted, marks = architecture.shapes(), dict[str, np.ndarray]()
    if packed_only:
        wanted = {name: shape for name, shape in wanted.items() if not is_map(name, shape)}
    whole = "encoder.embed_tokens.weight" in given
    if not whole and architecture.heads is not None:  # heads alone
        wanted = {name: shape for name, shape in wanted.items() if name.startswith(HEADS)}
        given, marks = _without_marks(
            given, base, lambda name: not name.startswith(HEADS), "a set of heads alone"
        )
    elif not whole and architecture.shares_encoder:
        given, marks = _without_marks(
            given, base, lambda name: name.startswith("encoder."), "a drafter without its encoder"
        )
        assert base is not None
        given |= {n: w for n, w in stored(base.weights).items() if n.startswith("encoder.")}
        if base.is_packed_only:  # its encoder's maps, too
            packed = [n for n, s in wanted.items() if n.startswith("encoder.") and is_map(n, s)]
            wanted = {name: shape for name, shape in wanted.items() if name not in packed}
    check_sizes(given, wanted)
    return Weights({name: given[name] for name in wanted}), marks


def _without_marks(
    given: dict[str, Any], base: Model | None, is_mark: Callable[[str], bool], what: str
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what a file has of its own, and what it has of its base's.

    Raises:
        UsageError: the base is another one, or is not given.
    """
    own, marks = {}, {}
    theirs = {} if base is None else base.weights
    for name, weight in given.items():
        if not is_mark(name):
            own[name] = weight
        elif name in theirs and _is_near(weight, theirs[name]):
            marks[name] = as_fp32(weight)
    if not marks or len(own) + len(marks) < len(given):
        allowed = "those of this one" if base else "--drafter-path with it, beside its model"
        raise UsageError(f"got {what}{', of another model' if base else ''}; allowed: {allowed}")
    return own, marks


def _is_near(weight: Any, other: np.ndarray) -> bool:
    """Return whether a weight of a file is another one; files may be in half precision."""
    if not isinstance(weight, np.ndarray) or weight.dtype not in _NUMBERS:
        return False
    same = weight.shape == other.shape
    return same and np.allclose(other, as_fp32(weight), rtol=4e-3, atol=1e-4)


def check_sizes(given: Mapping[str, Any], wanted: Mapping[str, tuple[int, ...]]) -> None:
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
