"""When commits of other processes make a version history contended."""

from __future__ import annotations

import pytest

from tiltyard.storage.manifests import contention
from tiltyard.storage.manifests.contention import CONTENDED_SECONDS, MAX_HISTORIES, Contention


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds = [100.0]
    monkeypatch.setattr(contention.time, "monotonic", lambda: seconds[0])
    return seconds


def test_history_of_one_process_is_never_contended() -> None:
    commits = Contention()
    for version in range(1, 100):
        commits.add_commit("t", version, version + 1)
    assert not commits.is_contended("t") and not commits.is_contended("u")


@pytest.mark.parametrize(
    "commits",
    [
        pytest.param([(1, 2), (2, 4), (4, 6)], id="rebased on others"),
        pytest.param([(1, 2), (3, 4), (5, 6)], id="others in between"),
    ],
)
def test_history_is_contended_for_a_while_after_several_commits_of_others(
    now: list[float], commits: list[tuple[int, int]]
) -> None:
    history = Contention()
    for opened, committed in commits[:-1]:
        history.add_commit("t", opened, committed)
    assert not history.is_contended("t"), "one commit of another process may be alone"
    history.add_commit("t", *commits[-1])
    assert history.is_contended("t")
    now[0] += CONTENDED_SECONDS - 1
    history.extend("t")
    now[0] += CONTENDED_SECONDS - 1
    assert history.is_contended("t")
    now[0] += 2
    assert not history.is_contended("t")


def test_commits_of_others_that_are_far_apart_are_no_contention(now: list[float]) -> None:
    history = Contention()
    for version in range(1, 100, 3):
        history.add_commit("t", version, version + 2)
        now[0] += CONTENDED_SECONDS + 1
    assert not history.is_contended("t")


def test_histories_are_bounded() -> None:
    history = Contention()
    for number in range(MAX_HISTORIES + 10):
        for version in (1, 3, 5):
            history.add_commit(str(number), version, version + 1)
    assert not history.is_contended("0")
    assert history.is_contended(str(MAX_HISTORIES))
