"""A Transformer that another toolkit trained, as ``paradec import`` writes it.

It is a stock Transformer but for three things: its output projection may have a bias, every
output may begin with a given word, such as the token of a language, and its encoder may not see
the ``</s>`` that fairseq puts behind a source.
"""

from argparse import ArgumentParser
from typing import Any

import torch
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerConfig, TransformerModel, base_architecture

from .building import EndlessEncoder, as_namespace


@register_model("imported_transformer")
class ImportedTransformer(TransformerModel):
    """A Transformer with a bias of its output, a first target token, or sources without end.

    Attributes:
        first_target_token: the word that every output begins with; None: any. The task forces it.
    """

    def __init__(self, args: Any, encoder: Any, decoder: Any) -> None:
        super().__init__(args, encoder, decoder)
        self.first_target_token: str | None = args.first_target_token

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the flags of a Transformer and its own."""
        super().add_args(parser)
        parser.add_argument(
            "--output-bias", action="store_true", help="the output projection has a bias"
        )
        parser.add_argument(
            "--first-target-token",
            metavar="WORD",
            help="every output begins with this word of the target dictionary",
        )
        parser.add_argument(
            "--no-source-end", action="store_true", help="a source's </s> is padding to the encoder"
        )

    @classmethod
    def build_model(cls, args: Any, task: Any) -> Any:
        """Build the model."""
        args = as_namespace(args)
        imported_transformer(args)
        return super().build_model(args, task)

    @classmethod
    def build_encoder(cls, args: Any, src_dict: Any, embed_tokens: Any) -> Any:
        """Build the stock encoder, or one that sees no ``</s>``."""
        if args.no_source_end:
            config = TransformerConfig.from_namespace(args)
            return EndlessEncoder(config, src_dict, embed_tokens)
        return super().build_encoder(args, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, args: Any, tgt_dict: Any, embed_tokens: Any) -> Any:
        """Build the stock decoder, and give its output projection a bias."""
        decoder = super().build_decoder(args, tgt_dict, embed_tokens)
        if args.output_bias:
            decoder.output_projection.bias = torch.nn.Parameter(torch.zeros(len(tgt_dict)))
        return decoder


@register_model_architecture("imported_transformer", "imported_transformer")
def imported_transformer(args: Any) -> None:
    """A Transformer without bias and first token, unless flags give them."""
    args.output_bias = getattr(args, "output_bias", False)
    args.first_target_token = getattr(args, "first_target_token", None)
    args.no_source_end = getattr(args, "no_source_end", False)
    base_architecture(args)
