"""The models; importing this package registers their architectures with fairseq."""

from . import (  # noqa: F401  (registers the models)
    block_nat,
    blockwise_transformer,
    imported_transformer,
    reordered_transformer,
    shallow_decoder,
)
