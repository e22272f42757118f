"""``--decoding auto_fast``: the fastest decoder on this machine, by measurement."""

from .generator import AutoFastDecoder

__all__ = ["AutoFastDecoder"]
