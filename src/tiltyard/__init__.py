"""Tiltyard: the open server for Lance tables."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__version__ = "0.1.0"


class _Announcer:
    """Tells `lance_namespace` our short name when it is imported: that takes a second, and `--help` has no use for it.

    `lance_namespace.connect("tiltyard", …)` so finds us once both are imported, in whichever order. The full name,
    "tiltyard.namespace.Namespace", is found at any time.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """As Python's import system asks; somebody may also ask just to know, and import nothing."""
        if name != "lance_namespace":
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((found for found in others if found is not None), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_announce(module: ModuleType) -> None:
                load(module)
                if module.__name__ == name:  # the loader of an archive is that of all that is in it
                    _announce(module)

            spec.loader.exec_module = load_and_announce  # type: ignore[method-assign]
        return spec


def _announce(module: Any) -> None:
    module.register_namespace_impl("tiltyard", "tiltyard.namespace.Namespace")


if "lance_namespace" in sys.modules:
    _announce(sys.modules["lance_namespace"])
else:
    sys.meta_path.insert(0, _Announcer())


def __getattr__(name: str) -> Any:
    """`tiltyard.Namespace`, `tiltyard.publish` and its errors, imported when they are asked for."""
    if name == "Namespace":
        from tiltyard.namespace import Namespace  # noqa: PLC0415  # see above

        return Namespace
    if name in ("publish", "PublishConflictError", "PublishUncertainError"):
        from tiltyard import publishing  # noqa: PLC0415  # see above

        return getattr(publishing, name)
    raise AttributeError(name)
