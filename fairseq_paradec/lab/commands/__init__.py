"""Commands that measure and draw."""
