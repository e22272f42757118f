"""Files of UTF-8 text that a user names."""

from __future__ import annotations

from pathlib import Path

from .errors import option_error


def read(flag: str, path: str) -> str:
    """Read a file of UTF-8 text.

    Args:
        flag: the flag that names it, for errors.
        path: the file.

    Raises:
        UsageError: it cannot be read, is empty, or is no UTF-8 text.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise option_error(flag, path, f"a file that can be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise option_error(
            flag, path, f"a file of UTF-8 text; byte {error.start} is none"
        ) from error
    if not text.strip():
        raise option_error(flag, path, "a file with sentences; this one is empty")
    return text.replace("\r\n", "\n")
