"""From a model to native weights, or to the reason why there are none."""

import logging
import threading
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ...errors import UsageError, option_error
from ...model.dictionary import EOS, PAD
from ...model.model import HeadWeights, Model
from . import kept
from .cache import NativeWeights
from .library import library
from .passes import native_encode
from .shelf import Shelf, open_shelf
from .stack import ACTIVATIONS, FORMS, NativeHeads, NativeMap, NativeStack, sized

log = logging.getLogger(__name__)


class Packed(NamedTuple):
    """A model in the form that native passes read."""

    decoder: NativeWeights  # its weights
    encoder: "NativeEncoder | None"  # None: torch computes it, or it is the verifier's


#: Packed models by form, each with the state of its weights when it was packed.
_PACKED: WeakKeyDictionary[Model, dict[str, tuple[Any, Packed]]] = WeakKeyDictionary()
#: Packed heads by form.
_HEADS: WeakKeyDictionary[HeadWeights, dict[str, NativeHeads]] = WeakKeyDictionary()
#: By model and form: a file with its packed weights, and the state that they are of.
_FILES: WeakKeyDictionary[Model, dict[str, tuple[Path, Any]]] = WeakKeyDictionary()
# Held while one is looked up or packed: threads that need it at once pack it once.
PACKING = threading.Lock()


def packed(model: Model, form: str) -> Packed | str:
    """Pack a model, or return the reason why torch has to compute its passes.

    A model is packed once in a form, for all scorers and threads.

    Args:
        model: whose weights change seldom.
        form: a key of ``FORMS``.

    Raises:
        NativeUnavailable: there is no library.
        UsageError: its weights are packed alone, and not in this form or for this CPU.
    """
    reason = why_not(model)
    if reason is not None:
        return reason
    library()
    state = model.state()
    with PACKING:
        known = _PACKED.setdefault(model, {})
        if form not in known or known[form][0] != state:
            known[form] = state, _pack_or_map(model, form, state)
        return known[form][1]


def packed_heads(heads: HeadWeights, form: str) -> NativeHeads:
    """Pack heads, once in a form for all batches, scorers and threads; see ``packed``."""
    with PACKING:
        known = _HEADS.setdefault(heads, {})
        if form not in known:
            known[form] = NativeHeads(heads, form)
        return known[form]


def offer(model: Model, form: str, path: Path) -> None:
    """Name a file of ``save_packed`` with a model's weights, as they are now, in a form."""
    _FILES.setdefault(model, {})[form] = path, model.state()


def save_packed(model: Model, form: str, path: Path) -> None:
    """Write the weights of a model, which ``packed`` packs, to a file."""
    shelf = Shelf(form, FORMS[form])
    _pack(model, form, shelf)
    shelf.save(path)


def why_not(model: Model) -> str | None:
    """Say why native passes do not know a model, or return None."""
    architecture = model.architecture
    for layers in (architecture.decoder, architecture.encoder):
        if layers is not None and layers.activation not in ACTIVATIONS:
            return "its activation has no native form"
    if architecture.output_dim != architecture.decoder.dim:
        return "its embeddings or outputs are projected"
    if architecture.block is not None and architecture.block.soft_copy:
        return "its masks copy from the source (--soft-copy)"
    return None


def _pack_or_map(model: Model, form: str, state: Any) -> Packed:
    """Map the file of packed weights that was offered, or pack them; see ``packed``."""
    path, offered = _FILES.get(model, {}).get(form, (None, None))
    if path is None or offered != state:
        if model.is_packed_only:
            held = " or ".join(_FILES.get(model, {}))
            raise option_error("--engine-dtype", form, f"{held}, as this model folder is packed")
        return _pack_or_find(model, form)
    shelf = open_shelf(path, form, FORMS[form])
    try:
        if isinstance(shelf, Shelf):
            return _pack(model, form, shelf)
        reason = shelf
    except ValueError as error:
        reason = str(error)
    if model.is_packed_only:
        raise UsageError(f"{path}: {reason}; its folder has no other weights: pack it here again")
    log.warning("%s is packed again in memory: %s", path, reason)
    return _pack(model, form)


def _pack_or_find(model: Model, form: str) -> Packed:
    """Map what the user's cache folder holds of a model, or pack it, for the next process, too."""
    path = kept.place(model, form)
    if path is None:
        return _pack(model, form)
    found = _mapped(model, form, path)
    if found is not None:
        kept.used(path)
        return found
    shelf = Shelf(form, FORMS[form])
    made = _pack(model, form, shelf)
    if kept.place(model, form) != path:  # the weights' file was written to meanwhile
        return made
    return kept.keep(shelf, path) and _mapped(model, form, path) or made


def _mapped(model: Model, form: str, path: Path) -> Packed | None:
    """Map a file of the cache; None: there is none of this model."""
    shelf = open_shelf(path, form, FORMS[form])
    try:
        return _pack(model, form, shelf) if isinstance(shelf, Shelf) else None
    except ValueError:
        return None


def _pack(model: Model, form: str, shelf: Shelf | None = None) -> Packed:
    """Pack a model's encoder and decoder, in the order of a file's maps."""
    architecture = model.architecture
    joins = form == "drafts"
    encoder = NativeEncoder(model, form, shelf) if model.encodes and not joins else None
    stack = NativeStack(model, "decoder", form, shelf)
    source_keys, linear = None if joins else stack.source_keys(), None
    stack.finish()
    if not architecture.cutoffs:
        name = "decoder.output_projection"
        bias = model.weight(f"{name}.bias") if architecture.output_bias else None
        weight = sized((architecture.target_words, architecture.output_dim))
        if shelf is None or not shelf.reads:
            weight = model.weight(f"{name}.weight")
        linear = NativeMap(weight, bias, "int2" if joins else form, shelf)
    return Packed(NativeWeights(stack, source_keys, linear), encoder)


class NativeEncoder:
    """A stock encoder by native passes."""

    def __init__(self, model: Model, form: str, shelf: Shelf | None = None) -> None:
        self.vectors, self.scale = model.embeddings("encoder")
        self.most = model.layers("encoder").most
        self.reads_end = model.architecture.source_end
        self.stack = NativeStack(model, "encoder", form, shelf)
        self.stack.finish()

    def __call__(self, tokens: np.ndarray) -> dict[str, list[np.ndarray]]:
        """Encode a batch, B×S: the parts of fairseq's encoder output, as LeanEncoder returns them.

        Raises:
            IndexError: a source is longer than the model has positions for.
        """
        padding = tokens == PAD
        if not self.reads_end:
            # A source of nothing else keeps it: something has to be seen.
            padding |= (tokens == EOS) & ((~padding).sum(axis=1, keepdims=True) > 1)
            tokens = np.where(padding, PAD, tokens)
        if tokens.shape[1] > self.most and (~padding).sum(axis=1).max() > self.most:
            raise IndexError(f"a source of {tokens.shape[1]} tokens: longer than the positions")
        states = native_encode(self.stack, tokens, padding)
        return {
            "encoder_out": [states.swapaxes(0, 1)],
            "encoder_padding_mask": [padding],
            "encoder_embedding": [np.float32(self.scale) * self.vectors[tokens]],
        }
