"""Memory that the process keeps for its next update, or gives back.

An update frees what it has allocated, glibc gives that back to the system, and the next update
waits for the same pages to be mapped and cleared again.
"""

import ctypes
import platform

M_TRIM_THRESHOLD = -1  # of malloc.h
M_MMAP_MAX = -4


def keep_memory() -> bool:
    """Let malloc keep freed memory, however large, until the process ends.

    Returns:
        Whether it does; not without glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, -1))


def give_back_memory() -> None:
    """Give back to the system what malloc holds freed; without glibc nothing happens."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
