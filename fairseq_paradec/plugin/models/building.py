"""Building of models: sizes, and settings or weights of another Transformer."""

import abc
from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from fairseq import checkpoint_utils
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerEncoder,
    TransformerEncoderBase,
    TransformerModel,
)
from omegaconf import OmegaConf
from torch import Tensor

from ... import config
from ...errors import option_error
from ..compat.loading import load_beside, named
from ..files import options_of

#: Layers, dimension, feed-forward dimension, heads; by the suffix of an architecture.
SIZES = {
    "_tiny": (4, 128, 256, 4),
    "_iwslt": (6, 512, 1024, 4),
    "": (6, 512, 2048, 8),
    "_big": (6, 1024, 4096, 16),
}


class EndlessEncoder(TransformerEncoderBase):
    """A stock encoder to which a source's ``</s>`` is padding.

    Attributes:
        stands_for: the class that computes the same once ``without_end`` has been asked.
    """

    stands_for = TransformerEncoderBase

    def without_end(self, tokens: Tensor) -> Tensor:
        """Return tokens, B×S, with padding for ``</s>``, but where a source has nothing else."""
        several = tokens.ne(self.padding_idx).sum(1, keepdim=True) > 1
        return tokens.masked_fill(tokens.eq(self.dictionary.eos()) & several, self.padding_idx)

    def forward(self, src_tokens: Tensor, *args: Any, **kwargs: Any) -> Any:
        """As fairseq's."""
        return super().forward(self.without_end(src_tokens), *args, **kwargs)


def as_namespace(args: Any) -> Any:
    """Return a model's options as a Namespace, also those of a checkpoint that are plain data."""
    return Namespace(**OmegaConf.to_container(args)) if OmegaConf.is_config(args) else args


def named_sizes(suffix: str) -> dict[str, int]:
    """Return fairseq's options of a size, for encoder and decoder."""
    names = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
    pairs = list(zip(names, SIZES[suffix], strict=True))
    return {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in pairs}


def set_sizes(args: Any, suffix: str) -> None:
    """Set an architecture's sizes that no flag gives."""
    for name, size in named_sizes(suffix).items():
        setattr(args, name, getattr(args, name, size))


def transformer_settings(path: str, flag: str, more: Iterable[str] = ()) -> dict[str, Any]:
    """Read the settings of a checkpoint's Transformer.

    Raises:
        UsageError: it is no checkpoint of a Transformer.
    """
    with named(flag):
        cfg = checkpoint_utils.load_checkpoint_to_cpu(path)["cfg"]["model"]
    settings = options_of(cfg)
    is_drafter = "drafter_block_size" in settings
    if is_drafter or "encoder_layers" not in settings or "decoder_layers" not in settings:
        raise option_error(flag, path, "a checkpoint of fairseq's Transformer, not a drafter's")
    # The settings that build a model, without paths of the training machine. "attention_" includes
    # the image Transformer's.
    own = {field.name for field in fields(TransformerConfig)} - {"_name"}
    own |= {"no_source_end", *more}
    plain = (bool, int, float, str, type(None))
    return {
        key: value
        for key, value in settings.items()
        if (key in own or key.startswith(("encoder_", "decoder_", "attention_", "quant_noise_")))
        and isinstance(value, plain)
        and not key.endswith("_path")
    }


def read_verifier(args: Any, fixed: Iterable[str] = ()) -> None:
    """Set ``encoder_settings``, and the options that a drafter has from ``--encoder-from``.

    Args:
        args: a drafter's options; those of its architecture are not filled in yet.
        fixed: names of the decoder's options that must be the verifier's; the encoder's must, too,
            and the decoder's sizes are unless flags give others.

    Raises:
        UsageError: the checkpoint does not fit, or flags contradict it.
    """
    if args.encoder_settings is None:
        args.encoder_settings = transformer_settings(args.encoder_from, "--encoder-from")
    settings = args.encoder_settings
    for name in [*(name for name in settings if name.startswith("encoder_")), *fixed]:
        if name not in settings:  # an older checkpoint: fairseq's default
            continue
        value = settings[name]
        given = getattr(args, name, value)
        if given != value:
            allowed = f"{value}, as in --encoder-from {args.encoder_from}"
            raise option_error(config.flag(name), given, allowed)
        setattr(args, name, value)
    for name in ("embed_dim", "layers", "ffn_embed_dim", "attention_heads"):
        option = f"decoder_{name}"
        setattr(args, option, getattr(args, option, settings[option]))


def refuse_options(args: Any, names: Iterable[str], allowed: str) -> None:
    """Refuse options of fairseq's that an architecture does not have."""
    for name in names:
        if getattr(args, name, None):
            raise option_error(config.flag(name), getattr(args, name), allowed)


def require_verifier(args: Any) -> None:
    """Refuse an architecture without ``--encoder-from``."""
    if not getattr(args, "encoder_from", None):
        raise option_error("--encoder-from", None, "the verifier's checkpoint")


def copy_encoder(model: Any, path: str, task: Any, flag: str = "--encoder-from") -> Any:
    """Copy the encoder of a checkpoint, and its target embedding if the sizes agree.

    Returns:
        The checkpoint's model.

    Raises:
        UsageError: the checkpoint is missing, or its encoder does not fit.
    """
    other, _ = load_beside(path, flag, task)
    if type(other.encoder) not in (TransformerEncoder, TransformerEncoderBase, EndlessEncoder):
        kind = type(other.encoder).__name__
        raise option_error(
            flag, path, f"a checkpoint with fairseq's Transformer encoder; this has a {kind}"
        )
    if _settings(model.encoder) != _settings(other.encoder):
        raise option_error(
            flag,
            path,
            "an encoder with the same heads, activation, norms, scale of embeddings and end",
        )
    try:
        model.encoder.load_state_dict(other.encoder.state_dict())
    except RuntimeError as error:
        raise option_error(
            flag, path, f"an encoder of the same size ({str(error).splitlines()[-1]})"
        ) from error
    own, table = model.decoder.embed_tokens.weight, other.decoder.embed_tokens.weight
    if own.shape == table.shape and own is not model.encoder.embed_tokens.weight:
        own.data.copy_(table)
    return other


def copy_decoder(own: Any, other: Any, flag: str, path: str) -> None:
    """Copy layers, norms and projection of another decoder.

    Of its N layers n are taken, evenly spread, with the first and the last.
    """
    count, available = len(own.layers), len(other.layers)
    # By number: iteration over a LayerDropModuleList skips layers at random.
    chosen = [round(i * (available - 1) / max(count - 1, 1)) for i in range(count)]
    parts = [(own.layers[i], other.layers[there]) for i, there in enumerate(chosen)]
    for name in ("layer_norm", "layernorm_embedding", "output_projection"):
        mine, theirs = getattr(own, name), getattr(other, name)
        if mine is not None and theirs is not None:
            parts.append((mine, theirs))
    try:
        if _settings(own)[2:3] != _settings(other)[2:3]:
            raise RuntimeError("its heads, activation or norms differ")
        for mine, theirs in parts:
            mine.load_state_dict(theirs.state_dict())
    except RuntimeError as error:
        why = str(error).splitlines()[-1].strip()
        raise option_error(flag, path, f"a decoder of the same size ({why})") from error


def _settings(stack: Any) -> list[Any]:
    """Return settings of an encoder or decoder that the shapes of its weights do not show."""
    layers = [(i.self_attn.num_heads, i.activation_fn, i.normalize_before) for i in stack.layers]
    return [stack.embed_scale, hasattr(stack, "without_end"), *layers]


def marks(weights: Mapping[str, Tensor], side: str) -> dict[str, Tensor]:
    """Select biases and norms of a model's last layer: enough to know the model by."""
    names = [name for name in weights if name.startswith(f"{side}.layers.")]
    last = f"{side}.layers.{max(int(name.split('.')[2]) for name in names)}."
    return {n: weights[n] for n in names if n.startswith(last) and weights[n].dim() == 1}


def without_encoder(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave out a drafter's encoder, its verifier's, but for its marks."""
    decoder = {name: w for name, w in weights.items() if not name.startswith("encoder.")}
    return marks(weights, "encoder") | decoder


def has_whole_encoder(weights: Mapping[str, Tensor]) -> bool:
    """Return whether a model's weights have an encoder, and not its marks alone."""
    return "encoder.embed_tokens.weight" in weights


class FreezableEncoder(TransformerModel):
    """A Transformer whose encoder training may leave as it is."""

    encoder_is_frozen = False  # whether it does

    def freeze_encoder(self) -> None:
        """Take the encoder's weights out of training."""
        self.encoder_is_frozen = True
        self.encoder.requires_grad_(False)

    def train(self, mode: bool = True) -> Any:
        """As torch; a frozen encoder stays in evaluation mode, as in decoding."""
        super().train(mode)
        if self.encoder_is_frozen:
            self.encoder.eval()
        return self


def unshare_encoder(args: Any) -> None:
    """Let a frozen encoder keep its own embedding, while the decoder's is trained."""
    args.share_all_embeddings = False
    args.share_decoder_input_output_embed = True


class DraftingTransformer(FreezableEncoder, abc.ABC):
    """A drafter, whose encoder can be that of its verifier, ``--encoder-from``.

    Attributes:
        shares_encoder: whether training leaves the encoder as the verifier's, so that decoding
            encodes a sentence once for both.
    """

    def __init__(self, args: Any, encoder: Any, decoder: Any) -> None:
        super().__init__(args, encoder, decoder)
        self.shares_encoder: bool = args.share_verifier_encoder
        if self.shares_encoder:
            self.freeze_encoder()

    @classmethod
    def build_model(cls, args: Any, task: Any) -> Any:
        """Build the model; a new one gets the verifier's weights.

        Raises:
            UsageError: the verifier does not fit, or there is no decoder layer.
        """
        args = as_namespace(args)
        if args.decoder_layers < 1:
            raise option_error("--decoder-layers", args.decoder_layers, "a whole number from 1 up")
        model = super().build_model(args, task)
        if args.encoder_from and not getattr(args, "encoder_copied", False):
            model.start_decoder(args, copy_encoder(model, args.encoder_from, task).decoder)
            args.encoder_copied = True  # the checkpoint will have these weights
        return model

    @classmethod
    def build_encoder(cls, args: Any, src_dict: Any, embed_tokens: Any) -> TransformerEncoderBase:
        """Build the encoder, with the verifier's settings if it starts from the verifier's."""
        kind = TransformerEncoderBase
        if args.encoder_settings is not None:
            if args.encoder_settings.get("no_source_end"):
                kind = EndlessEncoder
            dropouts = ("dropout", "attention_dropout", "activation_dropout")  # this training's own
            own = {name: getattr(args, name) for name in dropouts}
            args = TransformerConfig.from_namespace(Namespace(**args.encoder_settings | own))
        return kind(args, src_dict, embed_tokens)

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """As fairseq's; refuse weights whose encoder was left out."""
        if not has_whole_encoder(state_dict) and any(n.startswith("encoder.") for n in state_dict):
            allowed = "a whole checkpoint: this drafter's encoder was left out, so it serves as "
            raise option_error("--path", "a drafter", f"{allowed}--drafter-path of its verifier")
        return super().load_state_dict(state_dict, *args, **kwargs)

    @abc.abstractmethod
    def start_decoder(self, args: Any, verifier: Any) -> None:
        """Copy weights of the verifier's decoder; the encoder and the embedding have theirs."""
