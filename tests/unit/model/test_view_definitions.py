"""Definitions of views: their metadata, and the digest that the catalog records of them."""

from __future__ import annotations

from dataclasses import replace

from tiltyard.model.views.definitions import ViewDefinition, ViewKind

PLAIN = ViewDefinition(ViewKind.SELECT, "SELECT id FROM films")


def read_back(definition: ViewDefinition) -> ViewDefinition | None:
    return ViewDefinition.from_metadata({key.encode(): text.encode() for key, text in definition.metadata().items()})


def test_digest_covers_all_that_is_set_and_is_that_of_earlier_releases_without_it() -> None:
    assert PLAIN.digest == "b458fe5f2e6ffda9c111e11bbfd333dbcd6fa1e4f5885c9a6b11858586a5dfb0"
    assert replace(PLAIN, database="eu").digest == "225659c0bc4995bda04cca0268e94f88246293ffbeff30817e6b8d3d945c8e3d"
    changed = [
        replace(PLAIN, database="eu"),
        replace(PLAIN, auto_refresh=True),
        replace(PLAIN, refresh_seconds=5.0),
        replace(PLAIN, auto_refresh=True, refresh_seconds=5.0),
        replace(PLAIN, auto_refresh=True, refresh_seconds=6.0),
    ]
    assert len({definition.digest for definition in (PLAIN, *changed)}) == len(changed) + 1


def test_digest_is_that_of_the_definition_read_back() -> None:
    for seconds in (0.0, 1e-9, 0.1234567, 1 / 3, 5.0, 31_622_400.0):
        definition = replace(PLAIN, auto_refresh=True, refresh_seconds=seconds)
        found = read_back(definition)
        assert found is not None
        assert (found.digest, found.metadata()) == (definition.digest, definition.metadata())
