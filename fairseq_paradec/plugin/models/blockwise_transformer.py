"""Blockwise parallel decoding's model: a Transformer with prediction heads (Stern et al. 2018).

One feed-forward layer after the last decoder layer computes k outputs of each state, each with a
residual from the state, and the Transformer's own projection maps each to logits (section 6,
Figure 3). Head i, from 0, predicts token i+1 after the state's position.

| paper                                 | here                                              |
|---------------------------------------|---------------------------------------------------|
| p_1 .. p_k                            | heads 0 .. k-1                                    |
| k                                     | ``--block-size``                                  |
| d_hidden, d_model                     | the decoder's feed-forward and output dimensions  |
| the feed-forward layer, k·d_hidden    | ``--head-layer dense``                            |
| frozen, or fine tuned (section 6.1)   | ``--fine-tune-base``                              |
| identity for p_1 (footnote 1)         | the default; ``--train-first-head`` trains it     |

Beyond the paper: ``--head-layer per_head``, k layers side by side with k times fewer weights;
``--heads-see-token``, by which p_2 .. p_k read the embedding of p_1's token beside the state; and
``--base-path`` takes a model with heads, too, so that heads trained on a frozen base can be fine
tuned together with it.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from fairseq.models import MODEL_REGISTRY, register_model, register_model_architecture
from fairseq.models.transformer import (
    TransformerDecoder,
    TransformerDecoderBase,
    TransformerEncoder,
    TransformerEncoderBase,
    TransformerModel,
    base_architecture,
)
from omegaconf import OmegaConf
from torch import Tensor

from ...config import flag
from ...errors import UsageError, option_error
from ..compat.checkpoint_problems import ANY_CHECKPOINT_FLAG
from ..compat.loading import load_beside
from .building import SIZES, named_sizes, refuse_options, set_sizes, transformer_settings
from .heads import PREFIX, BlockHeads, build_heads

HEAD_LAYERS = ("dense", "per_head")
DEFAULT_BLOCK_SIZE = 8  # the paper's fastest


class HeadsOutput(NamedTuple):
    """The outputs of some heads for a batch."""

    hidden: Tensor  # B×T×N×D, for N heads
    projection: Tensor  # V×D, the output projection


class BlockwiseDecoder(TransformerDecoder):
    """fairseq's Transformer decoder with heads; its own output is p_1's, the scoring model's."""

    def __init__(self, args: Any, dictionary: Any, embed_tokens: Any) -> None:
        super().__init__(args, dictionary, embed_tokens)
        self.heads = build_heads(args, self)

    def output_layer(self, features: Tensor) -> Tensor:
        """Project head 0's output of the features to the vocabulary."""
        logits: Tensor = super().output_layer(self.heads.first(features))
        return logits


@register_model("blockwise_transformer")
class BlockwiseTransformer(TransformerModel):
    """A Transformer with prediction heads."""

    #: The pair of architecture and criterion that fit each other alone.
    trained_by: ClassVar = ("blockwise_transformer", "blockwise_loss")

    decoder: BlockwiseDecoder

    #: The allowed types of a base's encoder and decoder.
    base_parts: ClassVar[tuple[type, ...]] = (
        TransformerEncoder,
        TransformerEncoderBase,
        TransformerDecoder,
        TransformerDecoderBase,
    )
    #: The name of such a base in errors.
    base_kind: ClassVar[str] = "fairseq's own Transformer"

    def __init__(self, args: Any, encoder: Any, decoder: Any) -> None:
        super().__init__(args, encoder, decoder)
        self.is_frozen = not args.fine_tune_base
        if self.is_frozen:
            self.requires_grad_(False)
            decoder.heads.requires_grad_(True)

    @property
    def block_heads(self) -> BlockHeads:
        """The heads."""
        return self.decoder.heads

    @property
    def trained_heads(self) -> list[int]:
        """The heads whose loss has a gradient; the identity on a frozen base has none."""
        return self.block_heads.learned if self.is_frozen else list(range(self.args.block_size))

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the flags of a Transformer and the heads'."""
        super().add_args(parser)
        add = parser.add_argument
        add(
            "--block-size",
            type=int,
            metavar="K",
            help="number of tokens predicted from each state: the next one and K-1 more "
            f"(default {DEFAULT_BLOCK_SIZE})",
        )
        add(
            "--base-path",
            metavar="TRANSFORMER",
            help="start from this checkpoint, a trained Transformer, or one with heads, which are "
            "copied as well; settings that neither flags nor the architecture's name give (sizes, "
            "activation, norms, number of heads, ...) are the checkpoint's",
        )
        add(
            "--fine-tune-base",
            action="store_true",
            help="train the base too: longer blocks, and other translations. Without, the base is "
            "frozen, and the decoder's output is the base's greedy output",
        )
        add(
            "--head-layer",
            metavar="L",
            help="the heads' feed-forward layer: " + " or ".join(HEAD_LAYERS) + ". dense (the "
            "paper's, default): each head reads the hidden units of all heads; per_head: its own "
            "only, with K times fewer weights",
        )
        add(
            "--train-first-head",
            action="store_true",
            help="also learn the head of the next token (as in the paper); without this flag it is "
            "the identity, so that a frozen base keeps its output. It starts as the identity",
        )
        add(
            "--heads-see-token",
            action="store_true",
            help="the heads after the first also read the embedding of the next token, which is "
            "chosen before they draft: longer blocks, not in the paper",
        )

    @classmethod
    def build_model(cls, args: Any, task: Any) -> "BlockwiseTransformer":
        """Build the model; a new one gets the base's weights.

        Raises:
            UsageError: options contradict each other, or the base does not fit.
        """
        if OmegaConf.is_config(args):  # from a checkpoint whose configuration is plain data
            args = Namespace(**OmegaConf.to_container(args))
        _check_options(args)
        model: BlockwiseTransformer = super().build_model(args, task)
        if args.base_path and not getattr(args, "base_copied", False):
            _copy_base(model, args.base_path, task)
            args.base_copied = True  # the checkpoint will have these weights
        return model

    @classmethod
    def build_decoder(cls, args: Any, tgt_dict: Any, embed_tokens: Any) -> BlockwiseDecoder:
        """Build the decoder."""
        return BlockwiseDecoder(args, tgt_dict, embed_tokens)

    def train(self, mode: bool = True) -> "BlockwiseTransformer":
        """As torch; a frozen base stays in evaluation mode, as in decoding."""
        super().train(mode)
        if self.is_frozen:
            self.encoder.eval()
            self.decoder.eval()
            self.block_heads.train(mode)
        return self

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        heads: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run encoder and decoder.

        Args:
            src_tokens: B×S.
            src_lengths: B.
            prev_output_tokens: B×T.
            heads: the heads to compute, in ascending order; None: the model computes p_1 only.
            kwargs: fairseq's, without ``heads``.

        Returns:
            HeadsOutput; without ``heads`` the output of fairseq's Transformer.
        """
        if heads is None:
            return super().forward(src_tokens, src_lengths, prev_output_tokens, **kwargs)
        states = self.base_states(src_tokens, src_lengths, prev_output_tokens)
        following = self._following(prev_output_tokens) if self.block_heads.seen else None
        hidden = self.block_heads(states, heads, following)
        return HeadsOutput(hidden, self.decoder.output_projection.weight)

    def _following(self, prev_output_tokens: Tensor) -> Tensor:
        """Return the embeddings of the tokens that the states predict, B×T -> B×T×E.

        They are the next inputs: training forces them. Nothing is learned behind the last one.
        """
        tokens = F.pad(prev_output_tokens[:, 1:], (0, 1), value=self.decoder.padding_idx)
        vectors: Tensor = self.decoder.embed_scale * self.decoder.embed_tokens(tokens)
        return vectors

    def base_states(
        self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor
    ) -> Tensor:
        """Run the base, without a gradient if it is frozen: B×S, B, B×T -> B×T×D."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.is_frozen):
            encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
            states: Tensor
            states, _ = self.decoder(
                prev_output_tokens, encoder_out=encoder_out, features_only=True
            )
        return states

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """As fairseq.

        Raises:
            UsageError: the checkpoint holds heads without their base.
        """
        if not any(name.startswith("encoder.") for name in state_dict):
            raise UsageError(
                f"{ANY_CHECKPOINT_FLAG}: got heads without their base; allowed: them as "
                "--drafter-path, with --decoding blockwise and the base as --path"
            )
        return super().load_state_dict(state_dict, *args, **kwargs)


# ---- building -----------------------------------------------------------------------------------


def _check_options(args: Any) -> None:
    """Refuse wrong options, and options that contradict each other."""
    if type(args.block_size) is not int or args.block_size < 1:
        raise option_error("--block-size", args.block_size, "a whole number from 1 up")
    if args.head_layer not in HEAD_LAYERS:
        raise option_error("--head-layer", args.head_layer, ", ".join(HEAD_LAYERS))
    if not args.fine_tune_base and not getattr(args, "base_copied", False):
        if not args.base_path:
            raise option_error(
                "--base-path",
                None,
                "the checkpoint of a trained Transformer; none only with --fine-tune-base",
            )
        if args.block_size == 1 and not args.train_first_head:
            raise option_error(
                "--block-size",
                1,
                "from 2 up: one token is the base's own, and nothing is left to train; or "
                "--fine-tune-base, or --train-first-head",
            )
    refused = ("adaptive_softmax_cutoff", "cross_self_attention", "no_cross_attention")
    refuse_options(args, refused, "--arch blockwise_transformer and a base without it")


#: Parts of the names of settings that may differ from those of the base's training.
_FREE = ("positions", "activations", "min_params_to_wrap", "drop")


def _take_base_settings(args: Any, model: str, suffix: str, sizes: dict[str, int]) -> None:
    """Set the model's settings to its base's.

    Raises:
        UsageError: the base is another kind of model, or contradicts flags or the architecture's
            name.
    """
    path = args.base_path
    heads = ("block_size", "head_layer", "train_first_head", "heads_see_token")
    settings = transformer_settings(path, "--base-path", heads)
    if "head_layer" not in settings:  # --block-size is a flag of decoding, too
        settings.pop("block_size", None)
    for name in ("train_first_head", "heads_see_token"):  # kept; heads without may learn it
        if settings.pop(name, False):
            setattr(args, name, True)
    kind: Any = MODEL_REGISTRY[model]
    if ("attention_block" in settings) != ("image" in model):  # local attention or not
        wanted = f"a checkpoint of {kind.base_kind} with --arch {model}"
        raise option_error("--base-path", path, wanted)
    for name, value in settings.items():
        given = getattr(args, name, None)
        free = any(part in name for part in _FREE)
        if sizes.get(name, value) != value:
            raise option_error(
                "--base-path",
                f"{path} with {name} {value}",
                f"{sizes[name]} with --arch {model}{suffix}; --arch {model} takes the base's",
            )
        if given is None or (given is False and not free):  # False: the switch is not given
            setattr(args, name, value)
        elif given != value and not free:
            raise option_error(flag(name), given, f"{value}, as in --base-path {path}")


def _copy_base(model: BlockwiseTransformer, path: str, task: Any) -> None:
    """Copy a base's weights, and its heads if it has some.

    Raises:
        UsageError: the checkpoint is missing, or holds another kind of model or other sizes.
    """
    base, _ = load_beside(path, "--base-path", task)
    known = model.base_parts
    has_heads = type(base) is type(model)
    if type(base.encoder) not in known or not (has_heads or type(base.decoder) in known):
        raise option_error(
            "--base-path",
            path,
            f"a checkpoint of {model.base_kind}; this holds a {type(base).__name__}",
        )
    if base.decoder.adaptive_softmax is not None:
        raise option_error("--base-path", path, "a Transformer without an adaptive softmax")
    weights = model.state_dict()
    given = base.state_dict()
    for name, weight in weights.items():
        known = given.get(name)
        if name.startswith(PREFIX):
            continue
        if known is None or known.shape != weight.shape:
            raise option_error(
                "--base-path", path, f"a Transformer of the same size; its {name} does not fit"
            )
        weight.copy_(known)
    if has_heads:
        model.block_heads.start_from(base.block_heads)


# ---- architectures ------------------------------------------------------------------------------


def register_sizes(model: str) -> None:
    """Register a model with heads in all sizes, under its name and a suffix."""
    for suffix in SIZES:
        _register(model, suffix)


def _register(model: str, suffix: str) -> None:
    """Register one size."""
    sizes = named_sizes(suffix)

    def architecture(args: Any) -> None:
        args.base_path = getattr(args, "base_path", None)
        if args.base_path and not getattr(args, "base_copied", False):
            # The name without a suffix fits any size; contradicting flags raise their own error.
            meant = {n: v for n, v in sizes.items() if suffix and not hasattr(args, n)}
            _take_base_settings(args, model, suffix, meant)
        defaults: dict[str, Any] = {"block_size": DEFAULT_BLOCK_SIZE, "head_layer": "dense"}
        defaults |= {"fine_tune_base": False, "train_first_head": False, "heads_see_token": False}
        for name, value in defaults.items():
            if getattr(args, name, None) is None:
                setattr(args, name, value)
        set_sizes(args, suffix)
        base_architecture(args)

    register_model_architecture(model, model + suffix)(architecture)


register_sizes("blockwise_transformer")
