"""All targets: importing them registers each under its name."""

from __future__ import annotations

from tests.fuzz.parsers import arrow, http, lance_files, messages, records, requests, sql  # noqa: F401  # registered
