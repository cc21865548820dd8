"""Classifications in Python: set, listed, found, inherited by what is made of the columns, proposed by samples."""

from __future__ import annotations

from pathlib import Path

import pytest
from lance_namespace.errors import InvalidInputError

import tiltyard
from tiltyard import Lake

PEOPLE = [
    {"id": 4_111_111_111_111_111, "contact": f"write to p{number}@example.org", "phone": "unlisted", "note": "none"}
    for number in range(20)
]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return tiltyard.connect(tmp_path / "lake")


def test_columns_are_classified_found_and_passed_on(lake: Lake) -> None:
    people = lake.table("people")
    people.write(PEOPLE, mode="create")
    people.classify("pii", "email", column="contact")
    people.classify("region", "eu")
    made = [(each.object, each.column, each.key, each.value) for each in lake.classified("pii")]
    assert made == [("people", "contact", "pii", "email")]
    listed = {(each.column, each.key): each for each in people.classifications()}
    assert set(listed) == {(None, "region"), ("contact", "pii")}

    copy = lake.table("copy")
    copy.ingest(people.dataset().uri, format="lance", select="id,contact", rename={"contact": "mail"})
    inherited = {(each.column, each.key, each.inherited_from) for each in copy.classifications()}
    assert ("mail", "pii", "people contact") in inherited
    assert not any(column == "id" and key == "pii" for column, key, _ in inherited)
    people.unclassify("pii", column="contact")
    assert not any(each.key == "pii" for each in copy.classifications())
    with pytest.raises(InvalidInputError, match="is not set"):
        people.unclassify("pii", column="contact")


def test_samples_propose_and_set_nothing(lake: Lake) -> None:
    people = lake.table("people")
    people.write(PEOPLE, mode="create")
    proposed = [
        (each.column, each.value, each.found, each.sampled, each.is_named) for each in people.suggest_classifications()
    ]
    assert proposed == [
        ("contact", "email", 20, 20, False),
        ("id", "card", 20, 20, False),
        ("phone", "phone", 0, 20, True),
    ]
    assert [each.sampled for each in people.suggest_classifications(5)][:2] == [5, 5]
    assert people.classifications() == []
    people.classify("pii", "email", column="contact")
    assert [each.column for each in people.suggest_classifications()] == ["id", "phone"]
    with pytest.raises(InvalidInputError, match="cannot be sampled"):
        people.suggest_classifications(0)
