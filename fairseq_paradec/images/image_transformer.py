"""The image Transformer: super-resolution with local attention (Stern et al. 2018, section 7.2).

An image is a sequence of intensities (see ``images``). The decoder's self-attention is the 1-D
local attention of Parmar et al. (2018, section 3.3): positions form query blocks of l_q, and a
position attends to those before it in its own block and to the l_m positions before the block. The
encoder has the Transformer's full attention, since its input is small.

| paper                                    | here                                              |
|------------------------------------------|---------------------------------------------------|
| l_q, the query block's length            | ``--attention-block``                             |
| l_m, the memory before the query block   | ``--attention-memory``                            |
| positions by row and by column           | ``ImagePositions``                                |
| p_2 .. p_k (Stern et al.)                | the heads of ``blockwise_image_transformer``      |
"""

from argparse import ArgumentParser, Namespace
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import (
    TransformerDecoder,
    TransformerEncoder,
    TransformerModel,
    base_architecture,
)
from fairseq.modules import MultiheadAttention
from fairseq.tasks import TASK_REGISTRY
from omegaconf import OmegaConf
from torch import Tensor, nn

from ..config import flag
from ..errors import option_error
from ..plugin.models.blockwise_transformer import (
    BlockwiseDecoder,
    BlockwiseTransformer,
    register_sizes,
)
from ..plugin.models.building import SIZES, refuse_options, set_sizes
from ..plugin.models.reordered_transformer import sinusoids
from . import Size

#: The default of both flags, or the number of intensities if that is less.
DEFAULT_SPAN = 256


class Window(NamedTuple):
    """The window of a position: itself, and the positions before it from ``first`` on."""

    block: int  # l_q, from 1 up; 1 makes a sliding window
    memory: int  # l_m, from 0 up

    def first(self, position: Any) -> Any:
        """Return the first position of the window; below 0 if it has all positions before it."""
        return position // self.block * self.block - self.memory


class LocalSelfAttention(MultiheadAttention):
    """fairseq's self-attention of a decoder over a window (Parmar et al. 2018, section 3.3).

    The window makes it causal, so it ignores given masks. Padding is at the end, where no token
    attends to it.
    """

    known_to_local_scorer: ClassVar[bool] = True  # the class itself, and no subclass of it

    def __init__(self, window: Window, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, self_attention=True, **kwargs)
        self.window = window

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: Any = None,
        need_weights: bool = True,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend, T×B×D -> T×B×D; with ``incremental_state`` T is 1, and fairseq's code runs.

        Args:
            query: T×B×D.
            key: the same.
            value: the same.
            key_padding_mask: B×T; only fairseq's code reads it.
            incremental_state: fairseq's cache, of all positions so far.
            need_weights: only fairseq's code returns weights.
            kwargs: fairseq's; a mask is replaced.

        Returns:
            The output, and the attention weights or None.
        """
        if incremental_state is None:
            return self._by_blocks(query), None
        past = self._get_input_buffer(incremental_state).get("prev_key")
        here = 0 if past is None else past.size(2)
        hidden = self.window.first(here)
        mask = None
        if hidden > 0:
            mask = query.new_zeros(1, here + 1)
            mask[:, :hidden] = float("-inf")
        result: tuple[Tensor, Tensor | None] = super().forward(
            query,
            key,
            value,
            key_padding_mask,
            incremental_state,
            need_weights,
            **(kwargs | {"attn_mask": mask}),
        )
        return result

    def _by_blocks(self, x: Tensor) -> Tensor:
        """Attend from all positions at once, T×B×D -> T×B×D, without a T×T matrix."""
        length, batch, dim = x.shape
        block, memory = self.window
        # 1. Join whole blocks up to the memory's length, so that each key is read about twice.
        size = min(block * max(1, memory // block), length)
        memory = min(memory, length)
        count = -(-length // size)
        filler = count * size - length
        query, key, value = (
            project(x).view(length, batch * self.num_heads, self.head_dim).transpose(0, 1)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )  # BH×T×Dh
        # 2. The queries of N parts, BH×N×S×Dh, and the W = memory + S keys of each part.
        parts = F.pad(query, (0, 0, 0, filler)).unflatten(1, (count, size))
        keys, values = (
            F.pad(y, (0, 0, memory, filler)).unfold(1, memory + size, size).transpose(2, 3)
            for y in (key, value)
        )  # BH×N×W×Dh
        own = torch.arange(count * size, device=x.device).view(count, size, 1)
        others = own[:, :1] - memory + torch.arange(memory + size, device=x.device)  # N×1×W
        seen = (others >= self.window.first(own).clamp(min=0)) & (others <= own)  # N×S×W
        # 3. Attend, and join the parts.
        drops = self.training or self.dropout_module.apply_during_inference
        out = F.scaled_dot_product_attention(
            parts,
            keys,
            values,
            attn_mask=seen[None],
            dropout_p=self.dropout_module.p if drops else 0.0,
        )
        out = out.flatten(1, 2)[:, :length].transpose(0, 1).reshape(length, batch, dim)
        projected: Tensor = self.out_proj(out)
        return projected


class ImagePositions(nn.Module):
    """Vectors of an image's rows: sinusoids of the pixel's place, and the channel's own vector.

    As in Parmar et al. (2018, section 3.1), half the dimensions encode the row and half the column.
    Both are measured in pixels of the output, so that a pixel of the input and the output's pixels
    at the same place have similar vectors. In the decoder, vector t is that of the intensity that
    row t predicts; that of ``</s>`` is the place below the image.
    """

    known_to_local_scorer: ClassVar[bool] = True

    def __init__(self, size: Size, output: Size, dim: int) -> None:
        super().__init__()
        index = torch.arange(size.num_tokens + 1)
        pixel = index // size.channels
        down = (pixel // size.width + 0.5) * (output.height / size.height)
        right = (pixel % size.width + 0.5) * (output.width / size.width)
        self.max_positions = len(index)  # fairseq reads it
        self.channels = None if size.channels == 1 else nn.Embedding(size.channels, dim)
        if self.channels is not None:
            nn.init.normal_(self.channels.weight, std=dim**-0.5)
        self.pixels: Tensor
        self.channel: Tensor
        both = (sinusoids(down, dim - dim // 2), sinusoids(right, dim // 2))
        self.register_buffer("pixels", torch.cat(both, dim=1), persistent=False)
        self.register_buffer("channel", index % size.channels, persistent=False)

    def table(self, size: int) -> Tensor:
        """Return the vectors of all rows, T×D, for any ``size``."""
        if self.channels is None:
            return self.pixels
        vectors: Tensor = self.pixels + self.channels(self.channel)
        return vectors

    def forward(self, tokens: Tensor, incremental_state: Any = None) -> Tensor:
        """Return the vectors of B×T tokens, 1×T×D, the same for all images."""
        return self.table(tokens.size(1))[None, : tokens.size(1)]


class ImageEncoder(TransformerEncoder):
    """fairseq's Transformer encoder with the positions of an image."""

    embed_positions: Any

    def __init__(self, args: Any, dictionary: Any, embed_tokens: Any) -> None:
        super().__init__(args, dictionary, embed_tokens)
        self.embed_positions = ImagePositions(*sizes_of(args), embed_tokens.embedding_dim)


class ImageDecoder(TransformerDecoder):
    """fairseq's Transformer decoder with local self-attention and the positions of an image.

    It ignores fairseq's ``full_context_alignment``, which unmasks the predicted tokens; only models
    with alignment training use that option.
    """

    known_to_local_scorer: ClassVar[bool] = True
    embed_positions: Any

    def __init__(self, args: Any, dictionary: Any, embed_tokens: Any) -> None:
        self.attention_window = Window(args.attention_block, args.attention_memory)
        super().__init__(args, dictionary, embed_tokens)
        high = sizes_of(args)[1]
        self.embed_positions = ImagePositions(high, high, self.embed_dim)

    def build_decoder_layer(self, args: Any, no_encoder_attn: bool = False) -> Any:
        """Build fairseq's layer, with local attention in it."""
        layer: Any = super().build_decoder_layer(args, no_encoder_attn)
        layer.self_attn = LocalSelfAttention(
            self.attention_window,
            layer.embed_dim,
            layer.nh,
            dropout=args.attention_dropout,
            q_noise=layer.quant_noise,
            qn_block_size=layer.quant_noise_block_size,
        )
        return layer

    def buffered_future_mask(self, tensor: Tensor) -> None:
        """Return no mask: the window is causal, and a T×T mask is large for an image."""


@register_model("image_transformer")
class ImageTransformer(TransformerModel):
    """A Transformer from a small image to a large one."""

    decoder: ImageDecoder

    @property
    def image_sizes(self) -> tuple[Size, Size]:
        """The sizes of the images that it reads and writes."""
        return sizes_of(self.args)

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the flags of a Transformer and of local attention."""
        super().add_args(parser)
        fewer = f"(default {DEFAULT_SPAN}, or the output's intensities if these are fewer)"
        parser.add_argument(
            "--attention-block",
            type=int,
            metavar="L",
            help="local self-attention in the decoder: positions form blocks of L, and each "
            f"attends to those before it in its own block {fewer}",
        )
        parser.add_argument(
            "--attention-memory",
            type=int,
            metavar="M",
            help=f"each position also attends to the M positions before its block {fewer}",
        )

    @classmethod
    def build_model(cls, args: Any, task: Any) -> "ImageTransformer":
        """Build the model; a new one is for images of the task's sizes.

        Raises:
            UsageError: the task is another, or the model does not support an option.
        """
        if OmegaConf.is_config(args):  # from a checkpoint whose configuration is plain data
            args = Namespace(**OmegaConf.to_container(args))
        if not hasattr(task, "image_sizes"):
            names = (name for name, kind in TASK_REGISTRY.items() if kind is type(task))
            raise option_error(
                "--task",
                next(names, type(task).__name__),
                "image_super_resolution with --arch image_transformer",
            )
        if getattr(args, "low_size", None) is None:
            low, high = task.image_sizes
            args.low_size = [low.height, low.width, low.channels]
            args.high_size = [high.height, high.width, high.channels]
        _check_options(args)
        # All images have one size, so positions are exactly those of an image.
        low, high = sizes_of(args)
        args.max_source_positions = low.num_tokens + 1
        args.max_target_positions = high.num_tokens + 1
        model: ImageTransformer = super().build_model(args, task)
        return model

    @classmethod
    def build_encoder(cls, args: Any, src_dict: Any, embed_tokens: Any) -> ImageEncoder:
        """Build the encoder."""
        return ImageEncoder(args, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, args: Any, tgt_dict: Any, embed_tokens: Any) -> ImageDecoder:
        """Build the decoder."""
        return ImageDecoder(args, tgt_dict, embed_tokens)


def sizes_of(args: Any) -> tuple[Size, Size]:
    """Read the sizes of input and output images from a model's options."""
    return Size(*args.low_size), Size(*args.high_size)


def _check_options(args: Any) -> None:
    """Set the defaults of local attention's flags, and refuse options without support."""
    most = sizes_of(args)[1].num_tokens
    for name, least in (("attention_block", 1), ("attention_memory", 0)):
        given = getattr(args, name, None)
        if given is None:
            setattr(args, name, min(DEFAULT_SPAN, most))
        elif type(given) is not int or given < least:
            raise option_error(flag(name), given, f"a whole number from {least} up")
    refused = (
        "encoder_learned_pos",
        "decoder_learned_pos",
        "no_token_positional_embeddings",
        "cross_self_attention",
        "no_cross_attention",
        "decoder_xformers_att_config",
    )
    refuse_options(args, refused, "--arch image_transformer without it")


# ---- heads --------------------------------------------------------------------------------------


class BlockwiseImageDecoder(BlockwiseDecoder, ImageDecoder):
    """The image Transformer's decoder with heads; its own output is that of p_1."""

    known_to_local_scorer: ClassVar[bool] = True


@register_model("blockwise_image_transformer")
class BlockwiseImageTransformer(BlockwiseTransformer, ImageTransformer):
    """An image Transformer with prediction heads."""

    decoder: BlockwiseImageDecoder

    base_parts = (ImageEncoder, ImageDecoder)
    base_kind = "--arch image_transformer"

    @classmethod
    def build_decoder(cls, args: Any, tgt_dict: Any, embed_tokens: Any) -> BlockwiseImageDecoder:
        """Build the decoder."""
        return BlockwiseImageDecoder(args, tgt_dict, embed_tokens)


# ---- architectures ------------------------------------------------------------------------------


def _register(suffix: str) -> None:
    """Register the model in one size."""

    def architecture(args: Any) -> None:
        set_sizes(args, suffix)
        base_architecture(args)

    register_model_architecture("image_transformer", "image_transformer" + suffix)(architecture)


for _suffix in SIZES:
    _register(_suffix)
register_sizes("blockwise_image_transformer")
