"""Commands that make data and models."""
