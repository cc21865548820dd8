"""What Spark's Python workers do to stay quick."""

import ctypes
import resource
import subprocess
import sys

import pytest

SIZE, ROUNDS = 16 << 20, 20
PAGES = SIZE // resource.getpagesize()

WORK = f"""
import ctypes, resource, sys
from tiltyard.pipeline.spark_tasks import keep_memory
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
if sys.argv[1] == "kept":
    keep_memory()
else:
    libc.mallopt(-3, 128 << 10)  # as a new process has it; without this it would learn from the first rounds
for _ in range({ROUNDS}):
    place = libc.malloc({SIZE})
    ctypes.memset(place, 1, {SIZE})
    libc.free(place)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def faults(how: str) -> int:
    """Page faults of a process that writes the same amount of memory over and over, freed in between."""
    done = subprocess.run([sys.executable, "-c", WORK, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library keeps memory in its own way")
def test_memory_that_was_freed_is_used_again() -> None:
    assert faults("given back") - faults("kept") > PAGES * (ROUNDS - 2)
