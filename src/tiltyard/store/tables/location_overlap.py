"""Check that no table's folder contains another's. Checks of concurrent transactions are serialized."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.store.repository import parent_folders, placeholders

if TYPE_CHECKING:
    from tiltyard.store.backend import Connection, Row

# Held until the transaction ends: so each check sees the locations that the one before has inserted.
SERIALIZE = "SELECT id FROM namespaces WHERE id = 1 /*+ FOR NO KEY UPDATE */"
# A dropped table is scheduled for deletion as well; a deregistered one is not, and would go with a folder around it.
OVERLAPS = """
    SELECT FALSE FROM tables WHERE location IN ({above})
    UNION ALL SELECT FALSE FROM doomed_folders WHERE location IN ({above})
    UNION ALL SELECT FALSE FROM tables WHERE location > ? AND location < ?
    UNION ALL SELECT FALSE FROM doomed_folders WHERE location > ? AND location < ?
    UNION ALL SELECT TRUE FROM removed_tables WHERE location IN ({above})
    UNION ALL SELECT TRUE FROM removed_tables WHERE location > ? AND location < ?
    LIMIT 1
"""
DROP_MOUNTED_TABLE = "drop_mounted_table"
"""The kind of the transaction that keeps when a table below a mount was dropped, and which it was."""
# For an entry of another catalog: a table of this catalog around or in the folder, or none, for one that is to be
# deleted, or was dropped, there, around it or in it. The entry may be back at the folder of one that was dropped below
# a mount: that is not deleted then. A table that was deregistered may be in another catalog by now.
FOREIGN_OVERLAPS = f"""
    SELECT id FROM tables WHERE location IN ({{above}})
    UNION ALL SELECT id FROM tables WHERE location > ? AND location < ?
    UNION ALL SELECT NULL FROM removed_tables WHERE location IN ({{above}})
    UNION ALL SELECT NULL FROM removed_tables WHERE location > ? AND location < ?
    UNION ALL SELECT NULL FROM removed_tables WHERE location = ? AND dropped
    UNION ALL SELECT NULL FROM doomed_folders WHERE location IN ({{above}})
    UNION ALL SELECT NULL FROM doomed_folders WHERE location > ? AND location < ?
    UNION ALL SELECT NULL FROM doomed_folders WHERE location = ? AND NOT EXISTS (
        SELECT 1 FROM transactions WHERE id = doomed_folders.transaction_id AND kind = '{DROP_MOUNTED_TABLE}'
    )
    LIMIT 1
"""
IN_USE = "The location is inside or around the folder of another table: choose one beside it."
IN_TRASH = (
    "The location is inside or around the folder of a table that was deregistered, and is kept for a while:"
    " choose one beside it, undrop that table, or wait until its time is over (`tiltyard undrop` lists it)."
)


# Whether a folder is scheduled for deletion, and whether its table can still be restored.
SCHEDULED_DELETION = """
    SELECT EXISTS (SELECT 1 FROM removed_tables kept WHERE kept.location = doomed.location AND kept.dropped)
    FROM doomed_folders doomed WHERE doomed.location = ?
"""


def check_not_scheduled(connection: Connection, location: str) -> None:
    """Raise InvalidInputError for a folder that is scheduled for deletion, also if its table can still be restored."""
    if (row := connection.row(SCHEDULED_DELETION, location)) is None:
        return
    (is_restorable,) = row
    if is_restorable:
        raise InvalidInputError(
            "The table here was dropped, and is kept for a while: undrop that one (`tiltyard undrop` lists it)."
        )
    raise InvalidInputError(f"The location is being deleted: {location}")


def check_no_overlap(connection: Connection, location: str) -> None:
    """Raise InvalidInputError if a folder lies inside or around that of a table, in the catalog or removed from it.

    Whether it is the same folder as another table's is left to the unique constraint.
    """
    if message := find_overlap(connection, location):
        raise InvalidInputError(message)


def foreign_overlaps(location: str) -> tuple[str, list[str]]:
    """Return the statement that finds what overlaps the location of an entry of another catalog, and its values."""
    above = parent_folders(location)
    below = [f"{location}/", f"{location}0"]
    values = [*above, *below, *above, *below, location, *above, *below, location]
    return FOREIGN_OVERLAPS.format(above=placeholders(above)), values


def find_foreign_overlap(connection: Connection, location: str, *, serialized: bool) -> Row | None:
    """Return a row with the id of a table that overlaps the location of an entry of another catalog, or None there.

    None instead of a row where nothing does. With `serialized`, concurrent calls wait until this transaction ends.
    """
    if serialized:
        connection.row(SERIALIZE)
    sql, values = foreign_overlaps(location)
    return connection.row(sql, *values)


def find_overlap(connection: Connection, location: str) -> str | None:
    """Return why a folder overlaps another, or None. Concurrent calls wait until this transaction ends."""
    connection.row(SERIALIZE)
    above = parent_folders(location)
    below = f"{location}/", f"{location}0"  # "0" is what follows "/"
    sql = OVERLAPS.format(above=placeholders(above))
    overlap = connection.row(sql, *above, *above, *below, *below, *above, *below)
    if overlap is None:
        return None
    (is_in_trash,) = overlap
    return IN_TRASH if is_in_trash else IN_USE
