"""Leave out of a process what packages import for others: it was two thirds of a server's start.

    python -m tiltyard.runtime.lazy_imports MODULE

runs a module so, for a process that is started beside a server's.

`lance_namespace` imports a client of generated pydantic models (1.1 s of CPU), and a server wants its errors alone.
pyarrow imports pandas where it is installed (0.4 s), which a server has no use for. `bench/starting.py` measures it.
"""

from __future__ import annotations

import runpy
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

UPSTREAM = "lance_namespace"
PANDAS = "pandas"


def import_lazily() -> None:
    """Have `lance_namespace` run when one of its own names is read, and pyarrow do without pandas.

    For a process that is ours alone, before anything else has imported them. Modules inside `lance_namespace`, such as
    `errors`, are imported as always.
    """
    if UPSTREAM not in sys.modules:
        _defer(UPSTREAM)
    if PANDAS not in sys.modules:
        _start_pyarrow_without_pandas()


def _defer(name: str) -> None:
    """Put a module in its place that runs later, if it is installed."""
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    module.__dict__["__getattr__"] = _Deferred(module, spec.loader.exec_module)
    sys.modules[name] = module


class _Deferred:
    """A module's `__getattr__` (PEP 562), which runs the module when a name of it is read for the first time."""

    def __init__(self, module: ModuleType, load: Callable[[ModuleType], None]) -> None:
        self._module = module
        self._load: Callable[[ModuleType], None] | None = load
        self._lock = threading.RLock()

    def __call__(self, name: str) -> Any:
        """The attribute, once the module has run. Raises AttributeError."""
        if name.startswith("__") and name != "__all__":  # `inspect` reads such names of all modules
            raise AttributeError(name)
        with self._lock:
            if (load := self._load) is not None:
                self._load = None
                try:
                    load(self._module)
                except BaseException:
                    self._load = load
                    raise
                self._module.__dict__.pop("__getattr__", None)
        try:
            return self._module.__dict__[name]
        except KeyError:
            raise AttributeError(f"module {self._module.__name__!r} has no attribute {name!r}") from None


def _start_pyarrow_without_pandas() -> None:
    """Let pyarrow look for pandas, which it does once, at its first conversion; it finds none."""
    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        import pyarrow as pa  # noqa: PLC0415  # only now: nobody has found pandas yet

        pa.array([None, 1])
    finally:
        sys.meta_path.remove(absent)


class _Absent:
    """Says of pandas that it is not installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """As Python's import system asks. Raises ModuleNotFoundError."""
        if name == PANDAS:
            raise ModuleNotFoundError(f"No module named {PANDAS!r}", name=PANDAS)


if __name__ == "__main__":
    del sys.argv[0]
    import_lazily()
    runpy.run_module(sys.argv[0], run_name="__main__")
