"""Errors for mistakes of the user."""

import difflib
import reprlib
from collections.abc import Collection, Iterable

from .model_facts import class_of

#: Shows values in messages: a file's may be long or deep.
_SHOWN = reprlib.Repr()
_SHOWN.maxlevel, _SHOWN.maxstring, _SHOWN.maxlong, _SHOWN.maxother = 4, 500, 100, 500
_SHOWN.maxlist = _SHOWN.maxtuple = _SHOWN.maxset = _SHOWN.maxdict = 20


class UsageError(ValueError):
    """A mistake in flags, files or input: names the flag, what was given and what is allowed."""


def option_error(flag: str, given: object, allowed: str) -> UsageError:
    """Build the error for a wrong flag, in the form that all such errors have.

    Args:
        flag: the flag as typed on the command line, for example ``--block-size``.
        given: the given value.
        allowed: the allowed values, in words.
    """
    return UsageError(f"{flag}: got {shown(given)}; allowed: {allowed}")


def shown(value: object) -> str:
    """Return a value as a message shows it, cut in its middle if it is long or deep."""
    return _SHOWN.repr(value)


def needs(flag: str, given: object, needed: str) -> UsageError:
    """Build the error for a flag without what it needs: ``--audit needs ...``.

    Args:
        flag: as typed.
        given: its value; True for a switch.
        needed: another flag, data, a model, in words.
    """
    return UsageError(f"{_as_typed(flag, given)} needs {needed}")


def excludes(flag: str, given: object, other: str) -> UsageError:
    """Build the error for a flag beside what it excludes: ``--draft-tree 8 excludes --min-block``.

    Args:
        flag: as typed.
        given: its value; True for a switch.
        other: another flag, data, a model, in words.
    """
    return UsageError(f"{_as_typed(flag, given)} excludes {other}")


def _as_typed(flag: str, given: object) -> str:
    """Return a flag with its value, if it has one."""
    return flag if given is True else f"{flag} {given}"


def name_error(flag: str, given: str, known: Iterable[str]) -> UsageError:
    """Build the error for an unknown name, with up to three known ones that are like it."""
    like = difflib.get_close_matches(given, known)
    near = f", such as {', '.join(like)}" if like else ""
    return option_error(flag, given, f"a setting that fairseq or this plugin knows{near}")


def refuse_unknown(where: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse names that are not known; ``where`` they were given.

    Raises:
        UsageError: one is unknown; the message has those that are like it.
    """
    for name in given:
        if name not in known:
            raise name_error(where, name, known)


def suggestion(given: str, known: Iterable[str]) -> str:
    """Return the known name that is most like a mistyped one, as part of a message; or nothing."""
    like = difflib.get_close_matches(given, known, 1)
    return f" (did you mean {like[0]}?)" if like else ""


def nan_error(flag: str, models: Iterable[object]) -> UsageError:
    """Build the error for models with NaN probabilities; the flag names the models' checkpoints."""
    names = ", ".join(map(class_of, models))
    return UsageError(
        f"{flag}: the model ({names}) gives NaN probabilities; allowed: a model with finite "
        "weights; in fp16, try fp32"
    )
