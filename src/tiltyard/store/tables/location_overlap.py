"""Folders of tables lie apart: none inside another. Two that a client names at the same time are looked at in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.store.paths import among, folders_above

if TYPE_CHECKING:
    from tiltyard.store.backend import Connection

# One after the other, until the transaction ends: each then sees what the one before has entered.
IN_TURN = "SELECT id FROM namespaces WHERE id = 1 /*+ FOR NO KEY UPDATE */"
# What was dropped is doomed as well; what was deregistered is not, and would go with the folder around it.
OVERLAPS = """
    SELECT FALSE FROM tables WHERE location IN ({above})
    UNION ALL SELECT FALSE FROM doomed_folders WHERE location IN ({above})
    UNION ALL SELECT FALSE FROM tables WHERE location > ? AND location < ?
    UNION ALL SELECT FALSE FROM doomed_folders WHERE location > ? AND location < ?
    UNION ALL SELECT TRUE FROM removed_tables WHERE location IN ({above})
    UNION ALL SELECT TRUE FROM removed_tables WHERE location > ? AND location < ?
    LIMIT 1
"""
IN_USE = "The location is inside or around the folder of another table: choose one beside it."
KEPT = (
    "The location is inside or around the folder of a table that was deregistered, and is kept for a while:"
    " choose one beside it, undrop that table, or wait until its time is over (`tiltyard undrop` lists it)."
)


# Whether a folder is doomed, and whether its table can still be brought back.
IS_DOOMED = """
    SELECT EXISTS (SELECT 1 FROM removed_tables kept WHERE kept.location = doomed.location AND kept.dropped)
    FROM doomed_folders doomed WHERE doomed.location = ?
"""


def check_not_doomed(connection: Connection, location: str) -> None:
    """Raise InvalidInputError for a folder that is being deleted, or is when nobody brings its table back."""
    if (doomed := connection.row(IS_DOOMED, location)) is None:
        return
    if doomed[0]:
        raise InvalidInputError(
            "The table here was dropped, and is kept for a while: undrop that one (`tiltyard undrop` lists it)."
        )
    raise InvalidInputError(f"The location is being deleted: {location}")


def check_apart(connection: Connection, location: str) -> None:
    """Raise InvalidInputError if a folder lies inside or around that of a table, or of one that is kept or doomed.

    Whether it is the very folder of another table is left to the unique key.
    """
    if refusal := overlap(connection, location):
        raise InvalidInputError(refusal)


def overlap(connection: Connection, location: str) -> str | None:
    """Say why a folder does not lie apart, or nothing; until the transaction ends no client's location is entered."""
    connection.row(IN_TURN)
    above = folders_above(location)
    below = f"{location}/", f"{location}0"  # "0" is what follows "/"
    sql = OVERLAPS.format(above=among(above))
    found = connection.row(sql, *above, *above, *below, *below, *above, *below)
    if found is None:
        return None
    return KEPT if found[0] else IN_USE
