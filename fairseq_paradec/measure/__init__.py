"""Decode and judge, once: what the measuring commands are tables over."""
