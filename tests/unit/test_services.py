"""What a process has opened is closed together, in one order, whatever one of them raises."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tiltyard.context import Services

ORDER = ["decisions", "commit_log", "quotas", "mounts", "sql_processes", "sql_sessions", "storage", "store"]


def services(closed: list[str], failing: str = "", **fields: Any) -> Any:
    """Return services that note what is closed."""

    def part(name: str) -> SimpleNamespace:
        def close() -> None:
            closed.append(name)
            if name == failing:
                raise OSError(name)

        return SimpleNamespace(close=close, flush=close)

    return SimpleNamespace(**{name: part(name) for name in ORDER} | fields)


def test_close_writes_what_waits_before_the_database_is_closed() -> None:
    closed: list[str] = []
    Services.close(services(closed))
    assert closed == ORDER


def test_close_without_processes_for_queries_closes_the_rest() -> None:
    closed: list[str] = []
    Services.close(services(closed, sql_processes=None, decisions=None))
    assert closed == [name for name in ORDER if name not in ("sql_processes", "decisions")]


@pytest.mark.parametrize("failing", ORDER)
def test_close_closes_all_others_where_one_fails(failing: str) -> None:
    closed: list[str] = []
    with pytest.raises(OSError, match=failing):
        Services.close(services(closed, failing))
    assert closed == ORDER
