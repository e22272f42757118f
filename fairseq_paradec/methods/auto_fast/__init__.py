"""``--decoding auto_fast``: the decoder that is fastest here, found by measuring."""

from .generator import AutoFastGenerator

__all__ = ["AutoFastGenerator"]
