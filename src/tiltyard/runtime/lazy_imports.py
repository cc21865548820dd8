"""Skip unused imports of packages, which were two thirds of a server's start-up time.

    python -m tiltyard.runtime.lazy_imports MODULE …
    python -m tiltyard.runtime.lazy_imports --with-pandas MODULE …

runs a module this way, for helper processes of a server; with pandas where it runs what may convert to it.

`lance_namespace` imports a client of generated pydantic models (1.1 s of CPU), while a server uses only its errors.
pyarrow imports pandas where it is installed (0.4 s), which a server does not use. `bench/starting.py` measures it.
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
WITH_PANDAS = "--with-pandas"


def import_lazily() -> None:
    """Execute `lance_namespace` only when one of its own names is read, and start pyarrow without pandas.

    For processes that run only Tiltyard, before anything else has imported these packages. Modules inside
    `lance_namespace`, such as `errors`, are imported as usual.
    """
    defer_lance_namespace()
    if PANDAS not in sys.modules:
        _start_pyarrow_without_pandas()


def defer_lance_namespace() -> None:
    """Execute `lance_namespace` only when one of its own names is read; pyarrow is left alone."""
    if UPSTREAM not in sys.modules:
        _defer(UPSTREAM)


def _defer(name: str) -> None:
    """Register a module, if it is installed, that is executed when it is first used."""
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    module.__dict__["__getattr__"] = _DeferredModule(module, spec.loader.exec_module)
    sys.modules[name] = module


class _DeferredModule:
    """A module's `__getattr__` (PEP 562), which executes the module when one of its names is first read."""

    def __init__(self, module: ModuleType, load: Callable[[ModuleType], None]) -> None:
        self._module = module
        self._load: Callable[[ModuleType], None] | None = load
        self._lock = threading.RLock()

    def __call__(self, name: str) -> Any:
        """Execute the module if needed, and return its attribute. Raises AttributeError."""
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
    """Hide pandas while pyarrow looks for it, which it does once, at its first conversion."""
    absent = _PandasHider()
    sys.meta_path.insert(0, absent)
    try:
        import pyarrow as pa  # noqa: PLC0415  # only now: pandas must not be found before

        pa.array([None, 1])
    finally:
        sys.meta_path.remove(absent)


class _PandasHider:
    """A finder on `sys.meta_path` that reports pandas as not installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Implement the import system's protocol. Raises ModuleNotFoundError for pandas."""
        if name == PANDAS:
            raise ModuleNotFoundError(f"No module named {PANDAS!r}", name=PANDAS)


if __name__ == "__main__":
    del sys.argv[0]
    if sys.argv[0] == WITH_PANDAS:
        del sys.argv[0]
        defer_lance_namespace()
    else:
        import_lazily()
    runpy.run_module(sys.argv[0], run_name="__main__")
