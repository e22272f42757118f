"""Decoding and scoring for the measuring commands.

This file holds the constants that their parsers need; the modules import torch and fairseq.
"""

#: The engines that ``--peers`` names.
CTRANSLATE2, TRANSFORMERS = PEERS = "ctranslate2", "transformers"

#: Of ``--dtype``.
DTYPES = ("fp32", "fp16", "bf16")
