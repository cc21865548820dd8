"""Models of the commit protocols: what is promised holds in every state, and what is broken on purpose is found."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.models.spin import MODELS, Model, is_installed, models

SOURCE = MODELS.parent / "src" / "tiltyard"
needs_spin = pytest.mark.skipif(not is_installed(), reason="spin and gcc are not installed")


@needs_spin
@pytest.mark.parametrize("model", models(), ids=lambda model: model.name)
def test_promises_hold_in_every_state_and_no_broken_twin_keeps_them(model: Model, tmp_path: Path) -> None:
    verdict = model.check(tmp_path)
    assert not verdict.broken, f"{verdict.broken}, after {verdict.steps} steps: spin -t -p -g shows them"
    assert verdict.states > 1000, "a model without choices proves nothing"
    assert len(model.twins) >= 3
    for twin in model.twins:
        folder = tmp_path / twin
        folder.mkdir()
        assert model.check(folder, twin).broken, f"{twin} is not refuted"


@needs_spin
def test_twin_that_is_broken_nowhere_and_a_model_that_is_none_are_told(tmp_path: Path) -> None:
    model = tmp_path / "own.pml"
    model.write_text("byte n;\nactive proctype P() { do :: n < 9 -> n++; assert(n < 10) :: else -> break od }\n")
    (tmp_path / "whole").mkdir()
    assert not Model(model).check(tmp_path / "whole", "BROKEN_ELSEWHERE").broken
    model.write_text("active proctype P() { n++ }\n")
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="undeclared variable: n"):
        Model(model).check(tmp_path / "none")


def test_functions_whose_actions_a_model_has_are_there() -> None:
    for model in models():
        assert len(model.actions) >= 5, model.name
        for name, file in model.actions:
            tree = ast.parse((SOURCE / file).read_text())
            functions = {
                node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            assert name in functions, f"{model.name}: {file} has no function {name} any more. Is the model still true?"
