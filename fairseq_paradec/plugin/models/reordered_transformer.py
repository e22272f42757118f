"""The reordered Transformers: IBDecoder, IMDecoder, SA (zhang2020), double-token (imamura2020).

All are one model: fairseq's Transformer over targets that a ``TargetOrder`` reorders, with the
order's positions and mask. The architectures are presets. Extra parameters are IMDecoder's
embedding of each direction (zhang2020, section 4.1), and the inputs of the first step,
``--start-rows``.

A model that writes z tokens a step has z inputs in its first step. If each is ``</s>``, as fairseq
starts, they differ by their positions alone, which are small beside an embedding: the directions
begin alike. zhang2020's authors feed zero vectors (their code; the paper does not say), so that a
first input is its position alone.
"""

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerDecoder, base_architecture
from fairseq.modules import LearnedPositionalEmbedding
from omegaconf import OmegaConf
from torch import Tensor, nn

from ...errors import excludes, needs, option_error
from ...model.settings import ORDERS
from ...target_order import TargetOrder
from .building import (
    SIZES,
    FreezableEncoder,
    copy_decoder,
    copy_encoder,
    set_sizes,
    unshare_encoder,
)

#: --start-rows: what the first step reads.
START_ROWS = ("tokens", "zero", "learned")


def sinusoids(positions: Tensor, dim: int) -> Tensor:
    """Return fairseq's sinusoids of whole positions, also negative ones: W -> W×D, fp32."""
    half = dim // 2
    scale = torch.exp(torch.arange(half) * -(math.log(10000) / max(half - 1, 1)))
    angles = positions[:, None] * scale.to(positions.device)
    table = torch.cat((angles.sin(), angles.cos()), dim=1)
    return nn.functional.pad(table, (0, dim - 2 * half))


def slot_sinusoids(order: TargetOrder, size: int, dim: int) -> Tensor:
    """Return the sinusoids of an order's first slots, W×D; counted slots begin at fairseq's 2."""
    return sinusoids(torch.from_numpy(order.positions(size) + 2 * order.counts_slots), dim)


class SlotPositions(nn.Module):
    """Position vectors of the decoder's input rows: an order's positions and directions.

    The first rows' vectors also replace the embeddings of the start symbols, if ``starts`` is not
    ``tokens``: the decoder adds vectors to embeddings, so these vectors have them subtracted.

    Args:
        order: the order.
        embed_tokens: the target embedding, of dimension D.
        scale: the decoder's scale of embeddings.
        learned: the number of learned position vectors; None: sinusoids.
        starts: one of ``START_ROWS``.
        symbols: the tokens of the first step.
    """

    def __init__(
        self,
        order: TargetOrder,
        embed_tokens: nn.Embedding,
        scale: float,
        learned: int | None,
        starts: str,
        symbols: Sequence[int],
    ) -> None:
        super().__init__()
        self.order, self.dim, self.scale = order, embed_tokens.embedding_dim, scale
        self.max_positions = 10**5 if learned is None else learned  # as fairseq's sinusoids
        self.learned = None if learned is None else nn.Embedding(learned, self.dim)
        if self.learned is not None:
            nn.init.normal_(self.learned.weight, std=self.dim**-0.5)
        word = scale * self.dim**-0.5  # the size of an embedding's numbers in the decoder's input
        self.directions: nn.Embedding | None = None
        if order.directions > 2 and not order.vanilla_positions:
            self.directions = nn.Embedding(order.directions, self.dim)
            nn.init.normal_(self.directions.weight, std=word)
        self.starts: nn.Parameter | None = None
        if starts == "learned":
            self.starts = nn.Parameter(torch.randn(len(symbols), self.dim) * word)
        self.symbols = list(symbols) if starts != "tokens" else []
        # In a tuple, the decoder's embedding is not a module of this one, too.
        self._words = (embed_tokens,)
        self.rows: Tensor
        self.register_buffer("rows", torch.empty(0, self.dim), persistent=False)

    def table(self, size: int) -> Tensor:
        """Return at least ``size`` vectors, or all learned ones, T×D.

        Vector t is added to the input that predicts slot t.
        """
        rows = self.rows
        if self.learned is not None:
            index = np.arange(self.max_positions)
            if self.order.directions != 2:  # one vector a slot serves signed positions, too
                index = self.order.positions(self.max_positions)
            rows = self.learned(torch.from_numpy(index).to(rows.device))
        elif rows.size(0) < size:
            length = max(256, 2 * rows.size(0), size)
            rows = slot_sinusoids(self.order, length, self.dim).to(rows)
            self.rows = rows
        if self.directions is not None:
            directions = torch.from_numpy(self.order.directions_of(len(rows)))
            rows = rows + self.directions(directions.to(rows.device))
        if self.symbols:
            symbols = torch.tensor(self.symbols, device=rows.device)
            first = rows[: len(symbols)] - self.scale * self._words[0](symbols)
            if self.starts is not None:
                first = first + self.starts
            rows = torch.cat((first, rows[len(symbols) :]))
        return rows

    def forward(self, tokens: Tensor, incremental_state: Any = None) -> Tensor:
        """Return the vectors of B×T tokens, 1×T×D, the same for all rows."""
        return self.table(tokens.size(1))[None, : tokens.size(1)]


class ReorderedDecoder(TransformerDecoder):
    """fairseq's Transformer decoder with the positions and the mask of a TargetOrder."""

    embed_positions: Any
    _future_mask: Tensor

    def __init__(self, args: Any, dictionary: Any, embed_tokens: Any) -> None:
        super().__init__(args, dictionary, embed_tokens)
        self.order = order = read_order(args)
        longest, z = super().max_positions(), order.tokens_per_step
        if longest < z:
            raise option_error("--max-target-positions", longest, f"at least {z}, a step")
        starts = getattr(args, "start_rows", "tokens")  # as older checkpoints have
        if starts not in START_ROWS:
            raise option_error("--start-rows", starts, ", ".join(START_ROWS))
        if self.embed_positions is None:
            if starts != "tokens":
                raise option_error("--start-rows", starts, "tokens, for there are no positions")
            return
        learned = isinstance(self.embed_positions, LearnedPositionalEmbedding)
        # fairseq's learned vectors, one per slot, serve signed positions too.
        stock = order.counts_slots or (learned and order.directions == 2)
        if starts != "tokens" or not stock:
            self.embed_positions = SlotPositions(
                order,
                embed_tokens,
                self.embed_scale,
                self.max_target_positions if learned else None,
                starts,
                order.start(dictionary.bos(), dictionary.eos()),
            )

    def buffered_future_mask(self, tensor: Tensor) -> Tensor:
        """Return the order's mask instead of the causal one: T×B×D -> T×T, 0 or -inf."""
        size = tensor.size(0)
        if self._future_mask.size(0) < size:
            seen = torch.from_numpy(self.order.step_mask(self.order.whole_steps(size)))
            self._future_mask = torch.zeros(seen.shape).masked_fill_(~seen, -math.inf)
        self._future_mask = self._future_mask.to(tensor)
        return self._future_mask[:size, :size]

    @torch.no_grad()
    def start_like(self, other: Any) -> None:
        """Take over how another decoder starts, and its directions, as far as these exist.

        Args:
            other: a plain decoder, whose one start is ``</s>``, or a reordered one.
        """
        own, given = self.embed_positions, other.embed_positions
        if isinstance(own, LearnedPositionalEmbedding):
            # They begin as the sinusoids of the same words in zhang2020's order.
            order = replace(self.order, double_token=False)
            first = own.padding_idx + 1
            own.weight[first:] = slot_sinusoids(order, len(own.weight) - first, self.embed_dim)
        if not isinstance(own, SlotPositions):
            return
        if isinstance(given, SlotPositions):
            for name in ("starts", "directions", "learned"):
                mine, theirs = getattr(own, name), getattr(given, name)
                if mine is not None and theirs is not None:
                    mine, theirs = (getattr(part, "weight", part) for part in (mine, theirs))
                    count = min(len(mine), len(theirs))
                    mine[:count] = theirs[:count]
        elif own.starts is not None:
            own.starts[0] = self.embed_scale * self.embed_tokens.weight[own.symbols[0]]

    def max_positions(self) -> int:
        """Return the length of the longest output with ``</s>``: a number of whole steps."""
        longest: int = super().max_positions()
        z = self.order.tokens_per_step
        return longest // z * z


@register_model("reordered_transformer")
class ReorderedTransformer(FreezableEncoder):
    """A Transformer that writes its target in another order, several tokens per step."""

    decoder: ReorderedDecoder

    def __init__(self, args: Any, encoder: Any, decoder: Any) -> None:
        super().__init__(args, encoder, decoder)
        if getattr(args, "freeze_encoder", False):
            self.freeze_encoder()

    @property
    def target_order(self) -> TargetOrder:
        """The order of its targets."""
        return self.decoder.order

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the flags of a Transformer and the order's."""
        super().add_args(parser)
        add = parser.add_argument
        add(
            "--directions",
            type=int,
            metavar="H",
            help="write the target from one end (1), from both (2), or from both ends of each of "
            "H/2 equal segments",
        )
        add(
            "--tokens-per-direction",
            type=int,
            metavar="C",
            help="tokens that each direction writes per step; a step has H·C",
        )
        add("--right-to-left", action="store_true", help="with one direction: from the end")
        add(
            "--double-token",
            action="store_true",
            help="the pairs of Imamura and Sumita 2020: </s> fills the last pair, the first pair "
            "of inputs is <s> </s>, and positions count tokens in the order of writing",
        )
        add(
            "--middle-to-side",
            action="store_true",
            help="with two directions: write from the middle to both ends (an ablation)",
        )
        add(
            "--alternate-ends",
            action="store_true",
            help="with two directions or more: they write in turns, one token a step. The same "
            "order without words predicted together, for comparison (Zhang et al. 2020, Table 3)",
        )
        add(
            "--independent-directions",
            action="store_true",
            help="no direction attends to another (an ablation)",
        )
        add(
            "--vanilla-mask",
            action="store_true",
            help="the plain causal mask: a token's input does not attend to those of the step's "
            "later tokens (an ablation)",
        )
        add(
            "--vanilla-positions",
            action="store_true",
            help="positions 0, 1, 2, ... in the order of writing instead of 1, -1, 2, -2, ... or "
            "of imdecoder's with its embeddings of directions (an ablation)",
        )
        add(
            "--encoder-from",
            metavar="TRANSFORMER",
            help="start from the encoder and the embeddings of this checkpoint, a Transformer of "
            "the same sizes, which shortens training; --start-from shortens it more",
        )
        add(
            "--start-from",
            metavar="TRANSFORMER",
            help="start from all weights of this checkpoint that fit: encoder, embeddings and "
            "decoder of a Transformer, plain or reordered, of the same sizes. A decoder with fewer "
            "layers takes evenly spread ones. Needs --start-rows zero or learned where a step has "
            "several tokens",
        )
        add(
            "--freeze-encoder",
            action="store_true",
            help="with --start-from or --encoder-from: train the decoder alone; with "
            "--keep-frozen-outputs a sentence is encoded once",
        )
        add(
            # None, which a command line then has, and a checkpoint from before this flag has not.
            "--start-rows",
            metavar="WHAT",
            default=None,
            help="the inputs of the first step: " + ", ".join(START_ROWS) + ". tokens: the "
            "embeddings of the start symbols, alike but for their positions; zero: their positions "
            "alone, as in the code of zhang2020; learned: a vector each "
            "(default: learned; tokens for double_token's pairs and for one token a step)",
        )

    @classmethod
    def build_model(cls, args: Any, task: Any) -> "ReorderedTransformer":
        """Build the model.

        Raises:
            UsageError: the order's options contradict each other.
        """
        if OmegaConf.is_config(args):  # from a checkpoint whose configuration is plain data
            args = Namespace(**OmegaConf.to_container(args))
        read_order(args)
        model: ReorderedTransformer = super().build_model(args, task)
        _check_start(args, model)
        start_from = getattr(args, "start_from", None)
        if (args.encoder_from or start_from) and not getattr(args, "encoder_copied", False):
            if start_from:
                other = copy_encoder(model, start_from, task, "--start-from")
                copy_decoder(model.decoder, other.decoder, "--start-from", start_from)
                model.decoder.start_like(other.decoder)
            else:
                copy_encoder(model, args.encoder_from, task)
            args.encoder_copied = True  # the checkpoint will have these weights
        return model

    @classmethod
    def build_decoder(cls, args: Any, tgt_dict: Any, embed_tokens: Any) -> ReorderedDecoder:
        """Build the decoder."""
        return ReorderedDecoder(args, tgt_dict, embed_tokens)


def _check_start(args: Any, model: ReorderedTransformer) -> None:
    """Refuse options of the start that contradict each other."""
    start_from = getattr(args, "start_from", None)
    if getattr(args, "freeze_encoder", False) and not (start_from or args.encoder_from):
        raise needs("--freeze-encoder", True, "--start-from or --encoder-from")
    if not start_from:
        return
    if args.encoder_from:
        raise excludes("--start-from", start_from, "--encoder-from")
    if getattr(args, "start_rows", "tokens") == "tokens" and starts_alike(model.target_order):
        allowed = "zero or learned with --start-from, whose decoder knows one kind of start"
        raise option_error("--start-rows", "tokens", allowed)


def read_order(args: Any) -> TargetOrder:
    """Read the order from a model's options.

    Raises:
        UsageError: the options contradict each other.
    """
    return TargetOrder(**{f.name: getattr(args, f.name) for f in fields(TargetOrder)})


# ---- architectures ------------------------------------------------------------------------------

#: An architecture's settings of the order, for flags that are not given.
PRESETS: dict[str, dict[str, Any]] = {
    name: order | ({"decoder_learned_pos": True} if order.get("double_token") else {})
    for name, order in ORDERS.items()
}


def take_preset(args: Any, preset: dict[str, Any]) -> None:
    """Set the order's options that no flag gives, from the preset or to left to right."""
    for option in fields(TargetOrder):
        given = getattr(args, option.name, None)
        # Without its flag, a switch is False and a number is None.
        if given is None or given is False:
            setattr(args, option.name, preset.get(option.name, option.default))


def starts_alike(order: TargetOrder) -> bool:
    """Return whether two inputs of the first step have the same start symbol."""
    return len(set(order.start(0, 1))) < order.tokens_per_step


def default_start_rows(args: Any) -> str:
    """Return ``learned`` where start symbols would be alike, else ``tokens``."""
    if getattr(args, "no_token_positional_embeddings", False):
        return "tokens"
    return "learned" if starts_alike(read_order(args)) else "tokens"


def _register(name: str, suffix: str) -> None:
    """Register one preset in one size."""

    def architecture(args: Any) -> None:
        take_preset(args, PRESETS[name])
        args.encoder_from = getattr(args, "encoder_from", None)
        args.start_from = getattr(args, "start_from", None)
        if getattr(args, "start_rows", "tokens") is None:
            args.start_rows = default_start_rows(args)
        if getattr(args, "freeze_encoder", False):
            unshare_encoder(args)
        learned = PRESETS[name].get("decoder_learned_pos", False)
        args.decoder_learned_pos = getattr(args, "decoder_learned_pos", learned)
        set_sizes(args, suffix)
        base_architecture(args)

    register_model_architecture("reordered_transformer", name + suffix)(architecture)


for _name in PRESETS:
    for _suffix in SIZES:
        _register(_name, _suffix)
