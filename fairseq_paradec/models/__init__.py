"""What is trained: importing this registers the architectures with fairseq."""

from . import block_nat  # noqa: F401
