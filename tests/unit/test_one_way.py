"""Each thing is done in one place: these tests find a second one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tiltyard

SOURCE = Path(tiltyard.__file__).parent

PLACES = {
    "versions are recorded": (
        re.compile(r"(?:store|catalog)\.record_versions?\("),
        {
            "tables/commits/recording.py",  # whoever commits: clients, batches, publications, this server
            "tables/versions/records.py",  # versions that storage has already: no commit
        },
    ),
    "rights of whoever stored a definition are looked up as they are now": (
        re.compile(r"refresh_principal\("),
        {
            "access/authorization.py",
            "access/stored_definitions.py",
            "sql/read_grounds.py",  # of a caller whose session lasts
        },
    ),
    "whoever stored a definition is read": (
        re.compile(r"(?:type=|, )Principal\)"),
        {
            "catalog/jobs/authorization.py",
            "catalog/functions/pinned_secrets.py",
            "catalog/schedules/definitions.py",
            "tables/schema/column_refreshers.py",
            "tables/schema/view_sources.py",
        },
    ),
}


@pytest.mark.parametrize("what", PLACES)
def test_thing_is_done_in_its_places_alone(what: str) -> None:
    pattern, expected = PLACES[what]
    files = {str(path.relative_to(SOURCE)): path.read_text() for path in SOURCE.rglob("*.py")}
    assert {name for name, text in files.items() if pattern.search(text)} == expected


def test_whoever_reads_a_stored_principal_checks_it_as_a_definer() -> None:
    _, readers = PLACES["whoever stored a definition is read"]
    assert all("stored_definitions import Definer" in (SOURCE / name).read_text() for name in readers)
