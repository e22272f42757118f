"""Plain text to symbols and back, as fairseq has it, without fairseq.

A library is imported where a model names it.
"""
