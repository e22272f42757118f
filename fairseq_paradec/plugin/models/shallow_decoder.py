"""The drafter of ``--decoding assisted``: a shallow decoder on the verifier's own encoder.

It drafts token by token (Leviathan et al. 2023; Chen et al. 2023), so a draft's later tokens see
the earlier ones, which a block of masks does not. As its encoder is the verifier's, decoding
encodes a sentence once for both. It is a stock Transformer and decodes without a verifier, too.
"""

import re
from argparse import ArgumentParser
from typing import Any

from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import base_architecture

from .building import DraftingTransformer, read_verifier, require_verifier, unshare_encoder

#: Options of the decoder that are the verifier's.
FROM_VERIFIER = (
    "decoder_normalize_before",
    "no_decoder_final_norm",
    "activation_fn",
    "decoder_learned_pos",
    "no_token_positional_embeddings",
    "no_scale_embedding",
    "layernorm_embedding",
)


@register_model("shallow_decoder")
class ShallowDecoderModel(DraftingTransformer):
    """A Transformer with the verifier's encoder, frozen, and few decoder layers."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the flags of a Transformer and the verifier."""
        super().add_args(parser)
        parser.add_argument(
            "--encoder-from",
            metavar="VERIFIER",
            help="the verifier's checkpoint, a Transformer: its encoder stays as it is, and the "
            "decoder has its settings and sizes, unless flags give others, but one layer "
            "(--decoder-layers). A decoder of its width starts from its embedding and last layers",
        )

    def start_decoder(self, args: Any, verifier: Any) -> None:
        """Copy the verifier's last layers, norms and positions into a decoder of its width."""
        if args.decoder_embed_dim != args.encoder_settings["decoder_embed_dim"]:
            return
        theirs = verifier.state_dict()
        skipped = len(verifier.layers) - len(self.decoder.layers)
        for name, weight in self.decoder.state_dict().items():
            there = re.sub(r"^layers\.(\d+)", lambda m: f"layers.{int(m[1]) + skipped}", name)
            given = None if there.startswith("output_projection") else theirs.get(there)
            if given is not None and given.shape == weight.shape:
                weight.copy_(given)


@register_model_architecture("shallow_decoder", "shallow_decoder")
def shallow_decoder(args: Any) -> None:
    """One decoder layer of the verifier's sizes.

    Raises:
        UsageError: ``--encoder-from`` is missing, or flags contradict it.
    """
    require_verifier(args)
    args.share_verifier_encoder = True
    args.encoder_settings = getattr(args, "encoder_settings", None)
    args.decoder_layers = getattr(args, "decoder_layers", 1)
    read_verifier(args, FROM_VERIFIER)
    unshare_encoder(args)
    base_architecture(args)
