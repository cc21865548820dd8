"""Search a table of a Hive Metastore by vectors, through the stock lancedb client, next to Spark on the same metastore.

    python examples/hive.py

It starts a metastore, and a server that serves it as the namespace `hive`. lancedb creates a table of films below it,
and searches it, over HTTP and through the specification's own client. Then Spark, which knows nothing of the server,
looks at the same entry. Everything is stopped at the end. `make demo MOUNT=hive` runs this.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import lancedb
import pyarrow as pa

from film_data import load_films
from film_embedding import embed, embedded
from films import show, timed
from local_metastore import local_metastore
from local_server import local_server

if TYPE_CHECKING:
    from lancedb.table import Table

FILMS = 2_000
DATABASE = ["hive", "cinema"]
SHOWN = ["title", "year", "genre"]
WISH = "a haunted house horror film"

SETTINGS = """
[mounts.hive]
kind = "hive"
uri = "{uri}"
allowed_locations = ["{warehouse}"]
"""


def main() -> None:
    """Start a metastore and a server, tell the story, and stop them."""
    with TemporaryDirectory(prefix="tiltyard-hive-") as folder, local_metastore(Path(folder) / "hive") as uri:
        print(f"A Hive Metastore listens on {uri}.")
        config = Path(folder) / "tiltyard.toml"
        config.write_text(SETTINGS.format(uri=uri, warehouse=f"{folder}/hive/warehouse"))
        with local_server("--config", str(config)) as url:
            print(f"A Tiltyard server answers on {url}; the namespace `hive` is that metastore.")
            found = search_by_lancedb(url)
            look_by_spark(uri)
            count_again(url, found)
    print("\nDone.")


def search_by_lancedb(url: str) -> list[str]:
    """Create a table below the mount, and search it through both connections of lancedb; return the titles found."""
    films = load_films().slice(0, FILMS).select(["id", *SHOWN])
    [batch] = films.combine_chunks().to_batches()
    [vector] = embedded([WISH])
    remote = lancedb.connect("db://demo", api_key="any", host_override=url)
    with timed(f"Created a table of {FILMS:,} films with vectors through lancedb"):
        remote.create_namespace(DATABASE)
        remote.create_table("films", pa.Table.from_batches([embed(batch)]), namespace_path=DATABASE)
    found = nearest(remote.open_table("films", namespace_path=DATABASE), vector)
    show(f"Vector search through the server: {WISH!r}", found, [*SHOWN, "_distance"])
    local = lancedb.connect_namespace("rest", {"uri": url})
    again = nearest(local.open_table("films", namespace_path=DATABASE), vector)
    assert [row["title"] for row in again] == [row["title"] for row in found]
    print("  The same, by lancedb that gets the location from the server and reads the files itself.")
    return [row["title"] for row in found]


def nearest(table: Table, vector: Sequence[float]) -> list[dict[str, Any]]:
    """Return the five films whose vectors are the nearest."""
    query = table.search(vector, vector_column_name="vector").distance_type("cosine")
    rows: list[dict[str, Any]] = query.select([*SHOWN, "_distance"]).limit(5).to_list()
    assert len(rows) == 5
    return rows


def look_by_spark(uri: str) -> None:
    """Show what Spark without a connector for Lance makes of the entry, in a process of its own."""
    script = Path(__file__).with_name("spark_on_hive.py")
    with timed("Looked at it by Spark"):
        done = subprocess.run(
            [sys.executable, str(script), uri, "cinema", "films"], capture_output=True, text=True, check=False
        )
    print(f"\n{done.stdout}", end="")
    if done.returncode != 0:
        sys.exit(f"{done.stderr}\nSpark stopped with status {done.returncode}.")


def count_again(url: str, titles: list[str]) -> None:
    """Look whether the table is what it was, and drop it through lancedb."""
    remote = lancedb.connect("db://demo", api_key="any", host_override=url)
    table = remote.open_table("films", namespace_path=DATABASE)
    assert table.count_rows() == FILMS
    assert table.search().where(f"title = {titles[0]!r}").limit(1).to_list()
    print(f"\nAfter that, through lancedb: {table.count_rows():,} films, as before.")
    remote.drop_table("films", namespace_path=DATABASE)
    assert list(remote.list_tables(namespace_path=DATABASE).tables) == []
    print("Dropped the table through lancedb: the metastore has no entry of it any more.")


if __name__ == "__main__":
    main()
