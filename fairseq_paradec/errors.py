"""What a user did wrong, said in the user's words."""

from __future__ import annotations

from collections.abc import Iterable


class UsageError(ValueError):
    """A mistake in flags, files or input: names the flag, what was given and what is allowed."""


def option_error(flag: str, given: object, allowed: str) -> UsageError:
    """Build the one form of message that every wrong flag gets.

    Args:
        flag: the flag as typed on the command line, for example ``--block-size``.
        given: the value that was given.
        allowed: what would have been right, in words.
    """
    return UsageError(f"{flag}: got {given!r}; allowed: {allowed}")


def nan_error(flag: str, models: Iterable[object]) -> UsageError:
    """Build the error for models whose probabilities are not numbers; the flag gave the models."""
    names = ", ".join(type(model).__name__ for model in models)
    return UsageError(
        f"{flag}: the model ({names}) gives NaN probabilities; allowed: a model with finite "
        "weights; in fp16, try fp32"
    )
