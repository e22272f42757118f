"""From a scorer's model to native weights, or to the reason why there are none."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UsageError, option_error
from ..decoder_pass import DecoderWeights
from ..encoder import LeanEncoder, lean_encoder
from ..known import position_vectors
from ..watch import Watch
from .cache import NativeWeights
from .library import library
from .passes import native_encode
from .shelf import Shelf, open_shelf
from .stack import FORMS, NativeHeads, NativeMap, NativeStack, activations, why_not

log = logging.getLogger(__name__)


class Packed(NamedTuple):
    """A model in the form that native passes read."""

    decoder: NativeWeights  # its weights
    encoder: "NativeEncoder | None"  # None: the encoder is no stock one, and torch computes it


#: Packed models by form, each with the state of its weights when it was packed.
_PACKED: WeakKeyDictionary[nn.Module, dict[str, tuple[Any, Packed]]] = WeakKeyDictionary()
#: By model and form: a file with its packed weights, and the state that they are of.
_FILES: WeakKeyDictionary[nn.Module, dict[str, tuple[Path, Any]]] = WeakKeyDictionary()
_HEADS: WeakKeyDictionary[nn.Module, dict[str, tuple[Watch, NativeHeads]]] = WeakKeyDictionary()
# Held while one is looked up or packed: threads that need it at once pack it once.
_PACKING = threading.Lock()


def packed(model: Any, form: str, gather: Callable[[], DecoderWeights]) -> Packed | str:
    """Pack a model, or return the reason why torch has to compute its passes.

    A model is packed once in a form, for all scorers and threads.

    Args:
        model: prepared for inference.
        form: ``fp32``, ``bf16`` or ``int8``.
        gather: gathers its decoder plainly.

    Raises:
        NativeUnavailable: there is no library.
        UsageError: its weights are packed alone, and not in this form or for this CPU.
    """
    reason = _why_not(model)
    if reason is not None:
        return reason
    stamp = _stamp(model)
    with _PACKING:
        known = _PACKED.setdefault(model, {})
        if form in known and known[form][0] == stamp:
            return known[form][1]
        packed_or_reason = _pack_or_map(model, form, gather(), stamp)
        if isinstance(packed_or_reason, Packed):
            known[form] = stamp, packed_or_reason
        return packed_or_reason


def offer(model: Any, form: str, path: Path) -> None:
    """Name a file of ``save_packed`` with a model's weights, as they are now, in a form."""
    _FILES.setdefault(model, {})[form] = path, _stamp(model)


def save_packed(model: Any, form: str, gather: Callable[[], DecoderWeights], path: Path) -> None:
    """Write the weights of a model, which ``packed`` packs, to a file."""
    shelf = Shelf(form, FORMS[form])
    packed_or_reason = _pack_all(model, form, gather(), shelf)
    assert isinstance(packed_or_reason, Packed)
    shelf.save(path)


def _pack_or_map(model: Any, form: str, plain: DecoderWeights, stamp: Any) -> Packed | str:
    """Map the file of packed weights that was offered, or pack them; see ``packed``."""
    path, state = _FILES.get(model, {}).get(form, (None, None))
    alone = packed_only(model)
    if path is None or state != stamp:
        if alone:
            held = " or ".join(_FILES.get(model, {}))
            raise option_error("--engine-dtype", form, f"{held}, as this model folder is packed")
        return _pack_all(model, form, plain)
    shelf = open_shelf(path, form, FORMS[form])
    try:
        if isinstance(shelf, Shelf):
            return _pack_all(model, form, plain, shelf)
        reason = shelf
    except ValueError as error:
        reason = str(error)
    if alone:
        raise UsageError(f"{path}: {reason}; its folder has no other weights: pack it here again")
    log.warning("%s is packed again in memory: %s", path, reason)
    return _pack_all(model, form, plain)


def _pack_all(
    model: Any, form: str, plain: DecoderWeights, shelf: Shelf | None = None
) -> Packed | str:
    """Pack a model's decoder, gathered plainly, and its encoder; or return why not."""
    lean = lean_encoder(model)
    reason = why_not(plain.layers) or (None if lean is None else why_not(lean.stack))
    if reason is None and (plain.project_in is not None or plain.project_out is not None):
        reason = "its embeddings or outputs are projected"
    if reason is None and plain.copy_sharpness is not None:
        reason = "its masks copy from the source (--soft-copy)"
    if reason is not None:
        return reason
    library()
    encoder = None if lean is None else NativeEncoder(lean, form, shelf)
    return Packed(_pack(plain, model.decoder.output_projection, form, shelf), encoder)


def _stamp(module: Any) -> list[tuple[int, int, float]]:
    """Return the state of a module's weights: where they lie, torch's counts, and their sums.

    torch does not count changes through ``.data`` or numpy.
    """
    weights = list(module.parameters())
    counts = [0 if p.is_inference() else p._version for p in weights]
    # Of weights packed alone the others are a mapped file's, which a sum would read to its end.
    alone = packed_only(module)
    sums = [0.0 if alone else float(p.detach().sum()) for p in weights]
    return [(p.data_ptr(), n, total) for p, n, total in zip(weights, counts, sums, strict=True)]


def packed_only(model: Any) -> bool:
    """Return whether a model's weights are in files of packed ones alone."""
    return any(p.is_meta for p in model.parameters())


def _why_not(model: Any) -> str | None:
    """Say why a model's passes cannot be native, as far as a look at it tells."""
    weight = model.decoder.embed_tokens.weight
    if weight.device.type != "cpu":
        return f"it is on {weight.device.type}"
    if weight.dtype != torch.float32:
        return "its weights are not in fp32 (--engine-dtype packs them in bf16 or int8)"
    if getattr(model.decoder, "quant_noise", None) is not None:
        return "its embeddings are projected"
    if hasattr(model.decoder, "attention_window"):
        return "its attention is local"
    return None


def _pack(plain: DecoderWeights, projection: Any, form: str, shelf: Shelf | None) -> NativeWeights:
    """Pack a decoder."""
    stack = NativeStack(
        plain.layers,
        plain.embedding,
        plain.scale,
        plain.positions,
        plain.embedding_norm,
        plain.final_norm,
        form,
        shelf,
    )
    keys: Any = plain.source_keys
    parts = 2 * len(plain.layers)
    weight = torch.cat([stack.pad_heads(w) for w in keys.weight.chunk(parts)])
    bias = torch.cat([stack.pad_heads(b) for b in keys.bias.chunk(parts)])
    source_keys = NativeMap(weight, bias, form, shelf)
    linear = None
    if type(projection) is nn.Linear:
        linear = NativeMap(projection.weight, projection.bias, form, shelf)
    return NativeWeights(stack, source_keys, linear)


def pack_heads(heads: Any, form: str) -> Any:
    """Pack prediction heads, once for all generators in this form; see ``packed``.

    Heads whose activation has no native form are returned as they are.
    """
    if heads.activation not in activations():
        return heads
    with _PACKING:
        known = _HEADS.setdefault(heads, {})
        if form not in known or known[form][0].changed():
            known[form] = Watch(heads), NativeHeads(heads, form)
        return known[form][1]


class NativeEncoder:
    """A stock encoder by native passes; called like LeanEncoder."""

    def __init__(self, lean: LeanEncoder, form: str, shelf: Shelf | None = None) -> None:
        self.pad, self.scale, self.vectors = lean.pad, lean.scale, lean.vectors
        places = lean.encoder.embed_positions
        self.most = lean.encoder.max_positions()
        table = None
        if places is not None:
            table = position_vectors(places, self.most)
            self.most = min(self.most, len(table))
        self.stack = NativeStack(
            lean.stack,
            lean.vectors,
            lean.scale,
            table,
            lean.embedding_norm,
            lean.final_norm,
            form,
            shelf,
        )

    def __call__(self, net_input: dict[str, Tensor]) -> dict[str, list[Tensor]]:
        """Encode a batch; see LeanEncoder.

        Raises:
            IndexError: a source is longer than the model has positions for.
        """
        tokens = net_input["src_tokens"]
        padding = tokens.eq(self.pad)
        if tokens.size(1) > self.most and int((~padding).sum(dim=1).max()) > self.most:
            raise IndexError(f"a source of {tokens.size(1)} tokens: longer than the positions")
        states = native_encode(self.stack, tokens, padding)
        return {
            "encoder_out": [states.transpose(0, 1)],
            "encoder_padding_mask": [padding],
            "encoder_embedding": [self.scale * F.embedding(tokens, self.vectors)],
        }
