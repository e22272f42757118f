"""Passes by torch: the reference, GPUs, and models that the native library does not know."""
