"""``--bpe sentencepiece_pair``: one sentencepiece model for each side, and tokens of languages.

fairseq's ``sentencepiece`` has one model for both sides and knows no other tokens.
"""

from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.data.encoders import register_bpe
from fairseq.dataclass import FairseqDataclass

from ...text import bpe


@dataclass
class SentencepiecePairConfig(FairseqDataclass):
    """The flags of ``--bpe sentencepiece_pair``."""

    sentencepiece_source: str = field(
        default="???", metadata={"help": "sentencepiece model of the source"}
    )
    sentencepiece_target: str = field(
        default="???", metadata={"help": "sentencepiece model of the target"}
    )
    sentencepiece_tokens: Optional[str] = field(
        default=None,
        metadata={
            "help": "JSON file of the tokens that are no text: "
            '{"source": ["__en__"], "target": ["__de__"]}, what precedes a source, and what is no '
            "part of a target's text"
        },
    )


@register_bpe("sentencepiece_pair", dataclass=SentencepiecePairConfig)
class SentencepiecePair(bpe.SentencepiecePair):
    """The core's, by fairseq's flags."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(
            cfg.sentencepiece_source, cfg.sentencepiece_target, cfg.sentencepiece_tokens
        )
