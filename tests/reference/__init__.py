"""Slow, obvious twins of the fast decoders: one sentence, no cache, fairseq's full forward.

Nothing here imports the package under test, so that its own code is never its judge.
"""
