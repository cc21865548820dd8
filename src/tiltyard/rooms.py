"""Where the operations and jobs live: importing these rooms registers them all."""

from __future__ import annotations

import importlib
import pkgutil

import tiltyard.catalog
import tiltyard.identity
import tiltyard.tables


def open_rooms() -> None:
    """Import every module of the catalog, of the tables and of identity."""
    for room in (tiltyard.catalog, tiltyard.tables, tiltyard.identity):
        for module in pkgutil.iter_modules(room.__path__):
            importlib.import_module(f"{room.__name__}.{module.name}")
