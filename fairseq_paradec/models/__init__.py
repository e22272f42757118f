"""What is trained: importing this registers the architectures with fairseq."""

from . import (  # noqa: F401
    block_nat,
    blockwise_transformer,
    image_transformer,
    reordered_transformer,
)
