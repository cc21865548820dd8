"""The examples of docs/sql.md run as they stand, and each name of its table names something."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import lancedb
import pyarrow as pa
import pytest
from lancedb.index import FTS, IvfFlat

from tests.flight.conftest import flight_port
from tests.services.lossy import wait_for
from tests.services.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.filterwarnings("ignore:Cannot disable autocommit")
PAGE = (Path(__file__).resolve().parents[2] / "docs/sql.md").read_text()
FILMS = pa.table(
    {
        "title": ["Casablanca", "The old ship", "Vertigo"],
        "plot": ["a man, a bar and a letter", "an old ship …", "a man who is afraid of towers"],
        "year": [1942, 1950, 1958],
        "vector": pa.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], pa.list_(pa.float32(), 2)),
    }
)
PEOPLE = pa.table({"name": ["Ann", "Bob", "Cy"], "age": [17, 20, 40]})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path_factory.mktemp("page"))
    flight_port(running.url)
    db = lancedb.connect("db://any", api_key="none", host_override=running.url)
    for namespace in (["sales"], ["sales", "eu"]):
        db.create_namespace(namespace)
        db.create_table("films", FILMS, namespace_path=namespace)
    films = db.create_table("films", FILMS)
    films.create_index("title", config=FTS())
    films.add(FILMS.slice(0, 1))
    films.tags.create("release", 1)
    draft = films.branches.create("draft")
    while draft.version < 3:
        draft.add(FILMS.slice(0, 1))
    films.create_index("vector", config=IvfFlat(num_partitions=1), wait_timeout=timedelta(seconds=60))
    body = {"column": "plot", "index_type": "MINHASHLSH"}
    assert httpx.post(f"{running.url}/v1/table/films/create_scalar_index", json=body).status_code < 300
    wait_for(lambda: {"vector_idx", "plot_idx"} <= {index.name for index in films.list_indices()})
    db.create_table("people", PEOPLE)
    yield running
    assert running.stop() == 0


def test_examples_run_one_after_the_other(server: ServerProcess) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"key": "none"}
    for number, example in enumerate(examples, 1):
        own = example.replace("http://localhost:2333", server.url)
        own = own.replace("localhost:2334", f"127.0.0.1:{flight_port(server.url)}")
        exec(compile(own, f"example {number} of docs/sql.md", "exec"), names)
    assert len(examples) == 3
    assert "adults" not in names["db"].list_views()


def test_statements_of_the_page_run_one_after_the_other(server: ServerProcess) -> None:
    (statements,) = re.findall(r"```sql\n(CREATE .*?)```", PAGE, re.DOTALL)
    db = lancedb.connect("db://any", api_key="none", host_override=server.url)
    answers = [db.execute_query(statement).read_all().to_pylist() for statement in statements.strip().split("\n")]
    assert [answer[0]["name"] for answer in answers] == ["recent"] * 6


def test_each_name_of_the_page_names_a_table(server: ServerProcess) -> None:
    section = PAGE.partition("## Names")[2].partition("\n## ")[0]
    cells = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    names = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    assert len(names) >= 10
    db = lancedb.connect("db://any", api_key="none", host_override=server.url)
    for name in names:
        full_name = f"information_schema{name}" if name.startswith(".") else name
        assert db.execute_query(f"SELECT * FROM {full_name}").read_all().num_rows > 0, name
