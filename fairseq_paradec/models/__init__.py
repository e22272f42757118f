"""What is trained: importing this registers the architectures with fairseq."""

from . import block_nat, reordered_transformer  # noqa: F401
