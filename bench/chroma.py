"""Chroma's command, for `python -m`: its package has none."""

from __future__ import annotations

import sys

import chromadb_rust_bindings

if __name__ == "__main__":
    chromadb_rust_bindings.cli(["chroma", *sys.argv[1:]])
