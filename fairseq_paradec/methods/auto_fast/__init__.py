"""``--decoding auto_fast``: the fastest decoder on this machine, by measurement."""

from .generator import AutoFastGenerator

__all__ = ["AutoFastGenerator"]
