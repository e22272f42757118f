"""One file per loss: importing this registers them with fairseq."""

from . import block_nat_loss, blockwise_loss, lean_cross_entropy  # noqa: F401
