"""What is trained: importing this registers the architectures with fairseq."""

from . import block_nat, blockwise_transformer, reordered_transformer  # noqa: F401
