"""Marked parts of pages, which scripts write from the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_pages import write_page, write_part

PAGE = """# Page

<!-- words: made by `make words` from the code; do not edit -->
old
<!-- end of words -->

after
"""


def test_a_part_is_replaced_and_all_else_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert write_part(page, "new", "words", check=True) == 1
    assert page.read_text() == PAGE and "run `make words`" in capsys.readouterr().err
    assert write_part(page, "new", "words", check=False) == 0
    assert page.read_text() == PAGE.replace("old\n", "\nnew\n")
    assert write_part(page, "new", "words", check=True) == 0


def test_a_page_without_marks_is_refused_and_a_new_page_is_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert write_page(page, "all", "words", check=True) == 1
    assert write_page(page, "all", "words", check=False) == 0
    with pytest.raises(ValueError, match="unpack"):
        write_part(page, "new", "words", check=False)
    assert page.read_text() == "all"
