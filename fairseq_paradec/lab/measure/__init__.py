"""Decoding and scoring for the measuring commands.

This file holds the constants that their parsers need; the modules import torch and fairseq.
"""

#: The engines that ``--peers`` names.
CTRANSLATE2, TRANSFORMERS = PEERS = "ctranslate2", "transformers"

#: Of ``--dtype``.
DTYPES = ("fp32", "fp16", "bf16")

#: The benchmark's decoders besides those that are always there.
DEFAULT_DECODERS = ("pgj --block-size 5", "hgj --jacobi-window sliding --block-size 5")

#: Of a try-out of ``paradec acceptance``.
SMOKE_SENTENCES = 8
