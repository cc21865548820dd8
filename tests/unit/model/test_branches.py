"""Branches: three ways to write main are one branch, and each reader gets its own."""

from __future__ import annotations

import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard.model.branches import MAIN, Branch


@pytest.mark.parametrize("name", [None, "", "main"])
def test_parse_main_is_one_branch_however_it_is_written(name: str | None) -> None:
    assert Branch.parse(name) is MAIN
    assert (MAIN.is_main, MAIN.key, MAIN.name, MAIN.lance_name) == (True, "", "main", None)


@pytest.mark.parametrize("name", ["dev", "Main", "main/x", " ", "..", "ü"])
def test_parse_another_branch_has_one_name_everywhere(name: str) -> None:
    branch = Branch.parse(name)
    assert (branch.is_main, branch.key, branch.name, branch.lance_name) == (False, name, name, name)


def test_branch_by_its_key_is_the_parsed_one() -> None:
    assert all(Branch(branch.key) == branch for branch in (MAIN, Branch.parse("dev")))
    assert {(1, Branch.parse("dev")), (1, Branch("dev")), (1, MAIN)} == {(1, Branch("dev")), (1, Branch(""))}
    assert Branch("dev") != MAIN


@pytest.mark.parametrize("name", [".", "..", "a\0b", "a\nb", "\ud800", "x" * 257])
def test_check_refuses_what_no_branch_can_be_called(name: str) -> None:
    with pytest.raises(InvalidInputError, match="branch"):
        Branch.parse(name).check()


@pytest.mark.parametrize("name", [None, "", "main", "dev", "x" * 256])
def test_check_returns_the_branch(name: str | None) -> None:
    assert Branch.parse(name).check() == Branch.parse(name)
