"""Processors: how many each of several processes has."""

from __future__ import annotations

import pytest

from tiltyard.runtime.processors import processors_of


def test_processors_are_divided_among_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert [processors_of(processes) for processes in (1, 3, 8, 20)] == [8, 2, 1, 1]
