"""``--bpe sentencepiece_pair``: one sentencepiece model for each side, and tokens of languages.

fairseq's ``sentencepiece`` has one model for both sides and knows no other tokens.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from fairseq.data.encoders import register_bpe
from fairseq.dataclass import FairseqDataclass

from ... import extras
from ...errors import option_error


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
class SentencepiecePair:
    """Splits sources, and joins targets.

    A source may begin with a token of its own in ``>>`` and ``<<``, as OPUS-MT's models of several
    target languages read it; it is no text.

    Raises:
        UsageError: sentencepiece is not installed, or a file is missing or wrong.
    """

    def __init__(self, cfg: Any) -> None:
        self.source = load_sentencepiece(cfg.sentencepiece_source, "--sentencepiece-source")
        self.target = load_sentencepiece(cfg.sentencepiece_target, "--sentencepiece-target")
        self.before: list[str] = []
        self.dropped: set[str] = set()
        if cfg.sentencepiece_tokens is not None:
            try:
                tokens = json.loads(Path(cfg.sentencepiece_tokens).read_text(encoding="utf-8"))
                self.before, self.dropped = list(tokens["source"]), set(tokens["target"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise option_error(
                    "--sentencepiece-tokens",
                    cfg.sentencepiece_tokens,
                    f'a JSON file {{"source": [...], "target": [...]}} ({error})',
                ) from error

    def encode(self, x: str) -> str:
        """Split a source into pieces, with spaces between them."""
        code = re.match(r">>\S+?<<", x)
        before = [*self.before, code[0]] if code else self.before
        text = x[code.end() :] if code else x
        return " ".join([*before, *self.source.encode(text, out_type=str)])

    def encode_target(self, x: str) -> str:
        """Split a target into pieces, without the tokens that are no text."""
        return " ".join(self.target.encode(x, out_type=str))

    def decode(self, x: str) -> str:
        """Join a target's pieces."""
        pieces = [piece for piece in x.split() if piece not in self.dropped]
        joined: str = self.target.decode(pieces)
        return joined.replace("\u2581", " ").strip()  # a piece that is the source's alone keeps it


def load_sentencepiece(path: str, flag: str) -> Any:
    """Load a sentencepiece model.

    Raises:
        UsageError: sentencepiece is not installed, or the file is missing or another.
    """
    with extras.named(f"{flag} {path}"):
        from sentencepiece import SentencePieceProcessor
    try:
        return SentencePieceProcessor(model_file=path)
    except (OSError, RuntimeError, TypeError) as error:
        raise option_error(flag, path, "a model that sentencepiece wrote") from error
