"""A worker keeps the memory that it has had: to be given fresh pages in every step costs time."""

from __future__ import annotations

import ctypes

# The words of glibc's <malloc.h>, and the largest values that it takes.
TRIM_THRESHOLD, LARGEST_TRIM = -1, 2**31 - 1
MMAP_THRESHOLD, LARGEST_MMAP = -3, 2**25


def keep_memory() -> bool:
    """Let this process return no memory of up to 32 MiB a piece to the system before it ends; whether it will.

    By default glibc decides by the order of the first allocations, so that equal runs differ in speed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or Windows
        return False
    return bool(mallopt(TRIM_THRESHOLD, LARGEST_TRIM) and mallopt(MMAP_THRESHOLD, LARGEST_MMAP))
