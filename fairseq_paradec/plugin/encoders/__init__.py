"""Text processing of this package; importing it registers values of fairseq's ``--bpe``."""

from . import sentencepiece_pair  # noqa: F401
