"""The native engine: a decoder pass in one C++ call (``engine/csrc/``); see docs/engine.md."""
