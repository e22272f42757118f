"""Replacement of a function of fairseq by a fix, only once per process."""

import functools
from collections.abc import Callable
from typing import Any

#: What a fix replaces, and the fix.
Function = Callable[..., Any]


def wrap_once(owner: Any, name: str, wrap: Callable[[Function], Function], fix: str = "") -> None:
    """Replace ``owner.name`` by ``wrap`` of it, unless the fix is already applied.

    The mark is an attribute of the function, so that a second copy of the package finds it too.
    """
    original = getattr(owner, name)
    fixes: tuple[str, ...] = getattr(original, "paradec_fixes", ())
    fix = fix or name
    if fix in fixes:
        return
    wrapped = functools.wraps(original)(wrap(original))
    wrapped.paradec_fixes = (*fixes, fix)  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)


def around(owner: Any, name: str, fix: str = "") -> Callable[[Function], Function]:
    """Put a function in the place of ``owner.name``, once; its first argument is the original."""

    def put(new: Function) -> Function:
        def wrap(original: Function) -> Function:
            return lambda *args, **kwargs: new(original, *args, **kwargs)

        wrap_once(owner, name, wrap, fix)
        return new

    return put
