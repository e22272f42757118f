"""The native engine: a decoder pass in one C++ call (``csrc/``); see docs/engine.md."""
