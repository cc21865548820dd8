"""Tiltyard: the open server for Lance tables."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported on first use: `__getattr__`
    from tiltyard.lake import (
        CallOptions,
        FileOptions,
        Jdbc,
        Lake,
        Run,
        RunCanceledError,
        RunFailedError,
        Table,
        View,
        connect,
    )
    from tiltyard.namespace import Namespace
    from tiltyard.publishing import PublishConflictError, PublishUncertainError, publish

__all__ = [
    "CallOptions",
    "FileOptions",
    "Jdbc",
    "Lake",
    "Namespace",
    "PublishConflictError",
    "PublishUncertainError",
    "Run",
    "RunCanceledError",
    "RunFailedError",
    "Table",
    "View",
    "connect",
    "publish",
]

__version__ = "0.1.0"


class _RegisteringFinder:
    """Registers the implementation "tiltyard" with `lance_namespace` once that is imported.

    To import it here would take a second, and `--help` does not need it. `lance_namespace.connect("tiltyard", …)` works
    once both packages are imported, in whichever order; the full name, "tiltyard.namespace.Namespace", at any time.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Wrap the loader of `lance_namespace`, as a finder of Python's import system."""
        if name != "lance_namespace":
            return None
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: ModuleType) -> None:
                load(module)
                if module.__name__ == name:  # the loader of an archive is that of all that is in it
                    _register(module)

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


def _register(module: Any) -> None:
    module.register_namespace_impl("tiltyard", "tiltyard.namespace.Namespace")


if "lance_namespace" in sys.modules:
    _register(sys.modules["lance_namespace"])
else:
    sys.meta_path.insert(0, _RegisteringFinder())


_OF_PUBLISHING = frozenset({"publish", "PublishConflictError", "PublishUncertainError"})


def __getattr__(name: str) -> Any:
    """Import `tiltyard.connect`, `tiltyard.Namespace`, `tiltyard.publish` and what belongs to them on first use."""
    if name == "Namespace":
        from tiltyard.namespace import Namespace  # noqa: PLC0415  # see above

        return Namespace
    if name in _OF_PUBLISHING:
        from tiltyard import publishing  # noqa: PLC0415  # see above

        return getattr(publishing, name)
    if name in __all__:
        from tiltyard import lake  # noqa: PLC0415  # see above

        return getattr(lake, name)
    raise AttributeError(name)
