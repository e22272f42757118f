"""Text is UTF-8 in every locale, and a byte order mark is no part of it."""

import locale
import os
import sys

#: U+FEFF: where files were joined, it is also inside a text.
MARK = "\ufeff"


def without_marks(text: str) -> str:
    """Return a text without byte order marks."""
    return text.replace(MARK, "")


def bare(line: str) -> str:
    """Return a line without byte order marks, and without space around it."""
    return without_marks(line).strip()


def restart_in_utf8() -> None:
    """Start this command again in Python's UTF-8 mode, if the locale has another encoding.

    Python reads arguments and opens files and standard streams in the locale's encoding. Only a new
    start changes that for all of them, also in the libraries that a command calls. The process
    keeps its number and has read nothing yet. Processes that it starts are in that mode, too.
    """
    names = (locale.getencoding(), sys.getfilesystemencoding())
    if sys.flags.utf8_mode or {name.lower() for name in names} == {"utf-8"}:
        return
    if not sys.executable or os.environ.get("PYTHONUTF8") == "1":
        return  # started again already, or "python -X utf8=0" beside it
    os.environ["PYTHONUTF8"] = "1"
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
