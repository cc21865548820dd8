"""Spark's Python workers reuse memory that was freed."""

import ctypes
import resource
import subprocess
import sys

import pytest

SIZE, ROUNDS = 16 << 20, 20
PAGES = SIZE // resource.getpagesize()

WORK = f"""
import ctypes, resource, sys
from tiltyard.pipeline.spark_tasks import tune_allocator
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
if sys.argv[1] == "retained":
    tune_allocator()
else:
    libc.mallopt(-3, 128 << 10)  # the default of a new process; else glibc adapts it in the first rounds
for _ in range({ROUNDS}):
    place = libc.malloc({SIZE})
    ctypes.memset(place, 1, {SIZE})
    libc.free(place)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def page_faults(mode: str) -> int:
    """Return the page faults of a process that repeatedly allocates, writes and frees the same amount of memory."""
    process = subprocess.run([sys.executable, "-c", WORK, mode], capture_output=True, text=True, check=True)
    return int(process.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no mallopt")
def test_memory_that_was_freed_is_used_again() -> None:
    assert page_faults("returned") - page_faults("retained") > PAGES * (ROUNDS - 2)
