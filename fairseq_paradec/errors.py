"""What a user did wrong, said in the user's words."""

from __future__ import annotations


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
