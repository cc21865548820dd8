"""One check of the rights of whoever stored a definition: no other module looks up what an earlier principal is now."""

from __future__ import annotations

from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "tiltyard"
CHECK = {"access/authorization.py", "access/stored_definitions.py"}
OF_CALLERS = {"sql/read_grounds.py"}
"""Where a caller's own query goes on: it is authorized again, and nobody's definition is used."""


def test_stored_principals_are_looked_up_by_the_one_check_alone() -> None:
    users = {
        str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py") if "refresh_principal" in file.read_text("utf-8")
    }
    assert users == CHECK | OF_CALLERS
