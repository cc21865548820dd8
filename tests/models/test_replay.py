"""Traces of the models are taken by real servers, step by step; histories of servers are executions of the models."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import pytest

from tests.models.replay.actors import DivergenceError
from tests.models.replay.stage import record, replay
from tests.models.replay.stages import STAGES, model_of
from tests.models.replay.steps import STOP, HistoryChecker, refute, simulate
from tests.models.spin import is_installed
from tests.services.postgres import postgres_server

if TYPE_CHECKING:
    from pathlib import Path

    from tests.models.replay.servers import ServerStage

pytestmark = [
    pytest.mark.skipif(not is_installed(), reason="spin and gcc are not installed"),
    pytest.mark.parametrize("kind", STAGES, ids=lambda kind: kind.model),
]
TRACES, MANY_TRACES, HISTORIES, TWIN_TRACES = 10, 60, 10, 8


def test_traces_of_the_model_are_replayed_and_those_of_its_twins_are_not(
    kind: type[ServerStage], tmp_path: Path
) -> None:
    model = model_of(kind)
    with kind(tmp_path) as stage:
        for seed in range(TRACES):
            replay(stage, simulate(model, tmp_path, seed).steps)
        missed = [twin for twin in model.twins if not _is_told(stage, tmp_path, twin)]
    assert missed == list(kind.twins_alike)


def _is_told(stage: ServerStage, folder: Path, twin: str) -> bool:
    """Return whether the servers do not what a twin does."""
    model = model_of(type(stage))
    traces = (simulate(model, folder, seed, twin) for seed in range(TWIN_TRACES))
    for trace in chain(traces, (refute(model, folder, twin) for _ in range(1))):
        try:
            replay(stage, trace.steps, has_ended=False)
        except DivergenceError:
            return True
    return False


def test_histories_of_servers_are_of_the_model_and_corrupted_ones_are_not(
    kind: type[ServerStage], tmp_path: Path
) -> None:
    (tmp_path / "checker").mkdir()
    checker = HistoryChecker(model_of(kind), tmp_path / "checker")
    with kind(tmp_path) as stage:
        histories = [record(stage, seed) for seed in range(HISTORIES)]
    for history in histories:
        assert checker.has(history), f"no execution of the model has: {'; '.join(map(str, history))}"
        last = history[-1]
        other_state = [*history[:-1], replace(last, state=last.state + 1)]
        other_outcome = [*history[:-1], replace(last, outcome=last.outcome + 1)]
        twice = [*history, last]
        for corrupted in (other_state, other_outcome, *([] if last.action == STOP else [twice])):
            assert not checker.has(corrupted), f"the model has what never was: {'; '.join(map(str, corrupted))}"


@pytest.mark.extended
def test_traces_and_histories_many(kind: type[ServerStage], tmp_path: Path) -> None:
    model = model_of(kind)
    (tmp_path / "checker").mkdir()
    checker = HistoryChecker(model, tmp_path / "checker")
    with kind(tmp_path) as stage:
        for seed in range(1000, 1000 + MANY_TRACES):
            replay(stage, simulate(model, tmp_path, seed).steps)
            assert checker.has(record(stage, seed)), seed


@pytest.mark.extended
def test_traces_on_postgresql(kind: type[ServerStage], tmp_path: Path) -> None:
    with postgres_server() as server, kind(tmp_path, db=server.new_database()) as stage:
        for seed in range(2000, 2000 + TRACES):
            replay(stage, simulate(model_of(kind), tmp_path, seed).steps)
