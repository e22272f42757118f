"""GAD's drafter: a non-autoregressive Transformer that fills a block of masks (Xia et al. 2022).

Its decoder reads the accepted prefix from position 0 on, without a start symbol, and then k mask
slots; the output at the masks is the block (section 3, equation 1). The mask is a vector of the
model's own, so that stock dictionaries fit. In training a sentence can have several blocks, each
with its own prefix length and masked from the others.

| paper                              | here                                              |
|------------------------------------|---------------------------------------------------|
| y_1..y_j, the translated tokens    | the first ``starts`` tokens of ``target``         |
| k, the block size                  | ``--drafter-block-size``; K in shapes             |
| [MASK]                             | ``MASK`` in token tensors, ``decoder.mask_vector``|
| bi-directional attention           | ``--drafter-attention bidirectional``             |

Beyond the paper: ``prefix_causal`` attention, which allows a cache of the prefix's keys and values,
and ``--share-verifier-encoder``, which encodes a sentence once for drafter and verifier.
"""

from argparse import ArgumentParser
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import base_architecture
from fairseq.models.transformer.transformer_config import DEFAULT_MAX_TARGET_POSITIONS
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from torch import Tensor

from ...errors import UsageError, needs, option_error
from .block_decoder import MASK, BlockNatDecoder
from .building import (
    DraftingTransformer,
    copy_decoder,
    read_verifier,
    refuse_options,
    require_verifier,
    set_sizes,
    unshare_encoder,
)

ATTENTIONS = ("bidirectional", "prefix_causal")
POSITIONS = ("learned", "sinusoidal")
DEFAULT_BLOCK_SIZE = 25  # the paper's
FAST_LAYERS = 4  # of block_nat_fast's decoder
#: With --prefixes-after-errors, how many prefixes are tried for each one that is drawn.
TRIES = 4
#: Options that are the verifier's, with --decoder-from-verifier.
FROM_VERIFIER = (
    "decoder_embed_dim",
    "decoder_ffn_embed_dim",
    "decoder_attention_heads",
    "decoder_normalize_before",
    "decoder_output_dim",
    "no_decoder_final_norm",
    "activation_fn",
)


class BlockOutput(NamedTuple):
    """The model's output for the blocks of a batch."""

    hidden: Tensor  # N×D, hidden states at the N block positions where ``scored`` is true, in order
    projection: Tensor  # V×D, the output projection
    scored: Tensor  # B×J×K, the positions that have a target token and are not revealed

    @property
    def logits(self) -> Tensor:
        """The logits, N×V; the loss does not need them."""
        return F.linear(self.hidden, self.projection)


def reveal(truth: Tensor, wrong: Tensor, ratio: float, pad: int) -> Tensor:
    """Glance: replace some masks by target tokens (section 3; Qian et al. 2021).

    In each block floor(ratio · wrong positions) tokens are drawn from all of its positions.

    Args:
        truth: B×J×K target tokens, ``<pad>`` where there is none.
        wrong: B×J×K, True where the first pass is wrong; False at ``<pad>``.
        ratio: the glancing ratio.
        pad: ``<pad>``.

    Returns:
        B×J×K: ``MASK`` or the target token.
    """
    real = truth.ne(pad)
    count = (wrong.sum(dim=-1, keepdim=True) * ratio).floor()  # B×J×1
    lots = torch.rand(truth.shape, device=truth.device).masked_fill(~real, 2.0)
    rank = lots.argsort(dim=-1).argsort(dim=-1)
    return torch.where((rank < count) & real, truth, torch.full_like(truth, MASK))


@register_model("block_nat")
class BlockNatModel(DraftingTransformer):
    """GAD's drafter: an encoder, and a decoder that fills blocks of masks."""

    #: The pair of architecture and criterion that fit each other alone.
    trained_by: ClassVar = ("block_nat", "block_nat_loss")

    def __init__(self, args: Any, encoder: Any, decoder: Any) -> None:
        super().__init__(args, encoder, decoder)
        self.block_size: int = args.drafter_block_size
        self.has_random_blocks: bool = args.random_block_size
        self.num_updates = 0
        self.apply(init_bert_params)

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the flags of a Transformer and the drafter's own."""
        super().add_args(parser)
        add = parser.add_argument
        add(
            "--drafter-block-size",
            type=int,
            metavar="K",
            help="tokens in a block in training, and in decoding unless --block-size is given "
            f"(default {DEFAULT_BLOCK_SIZE})",
        )
        add(
            "--random-block-size",
            action="store_true",
            help="draw the number of masks of every other training batch, on average, from 1 to "
            "--drafter-block-size, so that one drafter serves all --block-size: decoding then "
            "fills no more masks than that asks for",
        )
        add(
            "--drafter-attention",
            metavar="A",
            help="how the decoder reads the accepted prefix: " + " or ".join(ATTENTIONS) + ". "
            "bidirectional (the paper's, default): prefix and masks attend to each other; "
            "prefix_causal: prefix tokens attend to those before them, so that they are computed "
            "once and cached",
        )
        add(
            "--drafter-positions",
            metavar="P",
            help="the decoder's position vectors, and those of an encoder that is not --encoder-"
            "from's: " + " or ".join(POSITIONS) + ". learned (the paper's, default): as in BERT, "
            "beside unscaled embeddings; sinusoidal: the Transformer's, beside scaled ones, which "
            "positions that are rare in training have, too",
        )
        add(
            "--soft-copy",
            action="store_true",
            help="add to each mask an average of the source embeddings around its position, with "
            "learned weights",
        )
        add(
            "--encoder-from",
            metavar="VERIFIER",
            help="start from the encoder of this checkpoint, a Transformer; the drafter has its "
            "sizes, and its decoder's sizes unless flags give others",
        )
        add(
            "--share-verifier-encoder",
            action="store_true",
            help="freeze the encoder of --encoder-from in training, so that decoding encodes a "
            "sentence once for both. The decoder's embeddings start from the verifier's",
        )
        add(
            "--decoder-from-verifier",
            action="store_true",
            help="start the decoder's layers from evenly spread layers of --encoder-from's "
            "decoder, with the first and the last; with the verifier's activation",
        )

    @classmethod
    def build_model(cls, args: Any, task: Any) -> "BlockNatModel":
        """Build the model; a new one gets the verifier's weights.

        Raises:
            UsageError: options contradict each other, or the verifier does not fit.
        """
        _check_options(args)
        model: BlockNatModel = super().build_model(args, task)
        return model

    @classmethod
    def build_decoder(cls, args: Any, tgt_dict: Any, embed_tokens: Any) -> BlockNatDecoder:
        """Build the decoder."""
        return BlockNatDecoder(args, tgt_dict, embed_tokens)

    def start_decoder(self, args: Any, verifier: Any) -> None:
        """Copy the verifier's layers, with ``--decoder-from-verifier``."""
        if args.decoder_from_verifier:
            copy_decoder(self.decoder, verifier, "--encoder-from", args.encoder_from)

    def set_num_updates(self, num_updates: int) -> None:
        """Keep the number of updates for the schedule of glancing."""
        super().set_num_updates(num_updates)
        self.num_updates = num_updates

    def masks(self, size: int) -> int:
        """Return how many masks decoding fills to draft ``size`` tokens.

        There are never fewer than in training: they attend to each other, so each of them predicts
        as it has learned to.
        """
        return size if self.has_random_blocks else max(size, self.block_size)

    def draw_block_size(self) -> int:
        """Return the number of masks of a training batch.

        With ``--random-block-size`` it is K in half of the batches, and uniform on 1..K in others.
        """
        if not self.has_random_blocks or torch.rand(()) < 0.5:
            return self.block_size
        return int(torch.randint(1, self.block_size + 1, ()))

    def check_prefixes(self, prefixes: int, tokens_per_prefix: int, after_errors: float) -> None:
        """Refuse several prefixes per sentence with bidirectional attention."""
        if self.decoder.attention == "prefix_causal":
            return
        for flag, given, most in (
            ("--prefixes-per-sentence", prefixes, 1),
            ("--tokens-per-prefix", tokens_per_prefix, 0),
            ("--prefixes-after-errors", after_errors, 0),
        ):
            if given > most:
                raise option_error(
                    flag,
                    given,
                    f"{most} with --drafter-attention bidirectional, where a prefix sees the "
                    "block; or --drafter-attention prefix_causal",
                )

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        target: Tensor | None = None,
        starts: Tensor | None = None,
        truth: Tensor | None = None,
        glancing_ratio: float = 0.0,
        prev_output_tokens: Tensor | None = None,
    ) -> BlockOutput:
        """Predict the blocks of a batch of sentence pairs, with glancing.

        Args:
            src_tokens: B×S.
            src_lengths: B.
            target: B×T target tokens.
            starts: B×J prefix lengths.
            truth: B×J×K the blocks' target tokens, ``<pad>`` where there is no loss.
            glancing_ratio: the share of wrong positions to reveal; 0 means no first pass.
            prev_output_tokens: unused; other criterions pass it.

        Raises:
            UsageError: the criterion is not block_nat_loss.
        """
        if target is None or starts is None or truth is None:
            raise UsageError(
                "--criterion: got one that does not belong to --arch block_nat; "
                "allowed: block_nat_loss"
            )
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.shares_encoder):
            encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
        real = truth.ne(self.decoder.padding_idx)
        shown = torch.full_like(truth, MASK)
        if glancing_ratio > 0:
            # The first pass has the second one's dropout, and no gradient.
            devices = [truth.device] if truth.is_cuda else []
            with torch.no_grad(), torch.random.fork_rng(devices):
                first = self.decoder(target, starts, shown, encoder_out)
                guess = self.decoder.output_layer(first[real]).argmax(dim=-1)
            wrong = torch.zeros_like(real)
            wrong[real] = guess.ne(truth[real])
            # The random draw uses a forked state too, so the second pass's dropout stays the same.
            with torch.random.fork_rng(devices):
                shown = reveal(truth, wrong, glancing_ratio, self.decoder.padding_idx)
        scored = real & shown.eq(MASK)
        features = self.decoder(target, starts, shown, encoder_out)
        return BlockOutput(features[scored], self.decoder.output_projection.weight, scored)

    @torch.no_grad()
    def first_tokens(
        self, src_tokens: Tensor, src_lengths: Tensor, target: Tensor, starts: Tensor, size: int
    ) -> Tensor:
        """Predict the first token behind each prefix as in decoding: no dropout, nothing revealed.

        Args:
            src_tokens: B×S.
            src_lengths: B.
            target: B×T target tokens.
            starts: B×J prefix lengths.
            size: K, the number of masks.

        Returns:
            B×J tokens.
        """
        training = self.training
        self.eval()
        encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
        masks = target.new_full((*starts.shape, size), MASK)
        features = self.decoder(target, starts, masks, encoder_out)[:, :, 0]
        self.train(training)
        tokens: Tensor = self.decoder.output_layer(features).argmax(dim=-1)
        return tokens


# ---- building -----------------------------------------------------------------------------------


def _check_options(args: Any) -> None:
    """Refuse wrong options, and options that contradict each other."""
    if args.drafter_attention not in ATTENTIONS:
        raise option_error("--drafter-attention", args.drafter_attention, ", ".join(ATTENTIONS))
    if args.drafter_positions not in POSITIONS:
        raise option_error("--drafter-positions", args.drafter_positions, ", ".join(POSITIONS))
    if args.drafter_positions == "sinusoidal" and args.decoder_learned_pos:
        raise needs("--decoder-learned-pos", True, "--drafter-positions learned")
    positions = getattr(args, "max_target_positions", None) or DEFAULT_MAX_TARGET_POSITIONS
    size = args.drafter_block_size
    if not 1 <= size <= positions:
        raise option_error(
            "--drafter-block-size",
            size,
            f"a whole number from 1 up to the decoder's positions ({positions})",
        )
    if args.share_verifier_encoder and not args.encoder_from:
        raise needs("--share-verifier-encoder", True, "--encoder-from")
    if args.decoder_from_verifier and not args.encoder_from:
        raise needs("--decoder-from-verifier", True, "--encoder-from")
    if args.soft_copy and args.encoder_embed_dim != args.decoder_embed_dim:
        raise needs("--soft-copy", True, "equal encoder and decoder embeddings")
    refused = ("adaptive_softmax_cutoff", "cross_self_attention")
    refuse_options(args, refused, "--arch block_nat without it")


# ---- architectures ------------------------------------------------------------------------------


def _fill_in(args: Any, suffix: str) -> None:
    """Set the sizes, and the common options, that no flag gives."""
    args.encoder_from = getattr(args, "encoder_from", None)
    args.share_verifier_encoder = getattr(args, "share_verifier_encoder", False)
    args.decoder_from_verifier = getattr(args, "decoder_from_verifier", False)
    args.soft_copy = getattr(args, "soft_copy", False)
    args.random_block_size = getattr(args, "random_block_size", False)
    args.drafter_attention = getattr(args, "drafter_attention", None) or "bidirectional"
    if getattr(args, "drafter_block_size", None) is None:
        args.drafter_block_size = DEFAULT_BLOCK_SIZE
    args.encoder_settings = getattr(args, "encoder_settings", None)
    if args.encoder_from or args.encoder_settings is not None:
        read_verifier(args, FROM_VERIFIER if args.decoder_from_verifier else ())
    set_sizes(args, suffix)
    if args.share_verifier_encoder:
        unshare_encoder(args)
    # As in BERT: learned positions, GELU, unscaled and normalised embeddings. Sinusoids would drown
    # unscaled embeddings.
    args.drafter_positions = getattr(args, "drafter_positions", None) or "learned"
    for name in ("encoder_learned_pos", "decoder_learned_pos", "no_scale_embedding"):
        setattr(args, name, getattr(args, name, args.drafter_positions == "learned"))
    args.activation_fn = getattr(args, "activation_fn", "gelu")
    args.layernorm_embedding = getattr(args, "layernorm_embedding", True)
    base_architecture(args)


@register_model_architecture("block_nat", "block_nat_tiny")
def block_nat_tiny(args: Any) -> None:
    """4+4 layers of 128, for small data on a CPU."""
    _fill_in(args, "_tiny")


@register_model_architecture("block_nat", "block_nat_iwslt")
def block_nat_iwslt(args: Any) -> None:
    """6+6 layers of 512, small feed-forward layers."""
    _fill_in(args, "_iwslt")


@register_model_architecture("block_nat", "block_nat")
def block_nat(args: Any) -> None:
    """Transformer-base's size, the paper's GAD-base."""
    _fill_in(args, "")


@register_model_architecture("block_nat", "block_nat_big")
def block_nat_big(args: Any) -> None:
    """Transformer-big's size, the paper's GAD-big."""
    _fill_in(args, "_big")


@register_model_architecture("block_nat", "block_nat_fast")
def block_nat_fast(args: Any) -> None:
    """For speed: 4 decoder layers on the verifier's own encoder, with a cached prefix.

    The layers start from the verifier's, which shortens training; there are no more than it has.

    Raises:
        UsageError: ``--encoder-from`` is missing.
    """
    require_verifier(args)
    args.share_verifier_encoder = args.decoder_from_verifier = True
    args.drafter_attention = getattr(args, "drafter_attention", None) or "prefix_causal"
    given = hasattr(args, "decoder_layers")
    block_nat(args)
    if not given:
        args.decoder_layers = min(FAST_LAYERS, args.decoder_layers)
