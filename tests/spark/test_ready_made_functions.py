"""Ready-made functions in Spark's workers: columns of a table, and a view that has a row for each chunk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from click.testing import CliRunner
from lance_namespace.errors import InvalidInputError

import tiltyard
from tests.spark.views import create_view, spec
from tests.unit.functions.images import picture
from tiltyard.cli import main
from tiltyard.functions import chunk_sentences, chunk_words, decode_image, detect_language, embed_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = pa.table(
    {
        "id": [1, 2, 3],
        "text": ["The cat is on the mat. It was there for an hour.", None, "Der Hund ist nicht auf dem Sofa."],
        "image": [picture(), b"none", None],
    }
)
CHUNKS = pa.schema([("id", pa.int64()), ("number", pa.int32()), ("chunk", pa.string()), ("start", pa.int32())])


def test_columns_and_views_are_computed_by_ready_made_functions(spark: SparkSession, tmp_path: Path) -> None:
    lake = tiltyard.connect(tmp_path / "root")
    pages = lake.table("pages")
    pages.ingest(PAGES)
    model = embed_text(model="wordllama")
    pages.add_column("vector", model, inputs="text")
    pages.add_column("chunks", chunk_words(size=6, overlap=2), inputs="text")
    for column in ("vector", "chunks"):
        pages.backfill(column)
    rows = pages.to_arrow(["id", "text", "vector", "chunks"]).sort_by("id")
    assert rows["vector"].combine_chunks().equals(model(rows["text"]))
    assert rows["chunks"].to_pylist() == chunk_words(size=6, overlap=2)(rows["text"]).to_pylist()

    pages.backfill("language", detect_language, inputs="text")  # it has a type of its own
    assert pages.to_arrow("language")["language"].to_pylist() == ["en", None, "de"]
    options = ["--root", str(tmp_path / "root"), "--inputs", "text"]
    command = ["job", "backfill", "pages", "masked", "--udf", "mask_pii(kinds=['ip'])", *options]
    assert CliRunner().invoke(main, command, catch_exceptions=False).exit_code == 0
    assert pages.to_arrow("masked")["masked"].to_pylist() == PAGES["text"].to_pylist()

    pages.backfill("pixels", decode_image(width=2, height=2), inputs="image", on_error="park")
    assert pages.to_arrow("pixels")["pixels"].is_valid().to_pylist() == [True, False, False]
    [error] = pages.errors("pixels").to_pylist()
    assert (error["id"], error["error_message"]) == (2, "the image cannot be read: it is none of a known format")

    exploded = "SELECT id, c.chunk AS chunk FROM pages LATERAL VIEW explode(chunks) AS c"
    view = lake.create_view("exploded", exploded)
    view.refresh()
    assert lake.table("exploded").count() == len([chunk for row in rows["chunks"].to_pylist() for chunk in row or ()])

    code = spec("chunker", chunk_sentences(size=8), ["text"])
    create_view(lake.catalog, "sentences", "SELECT id, text FROM pages", CHUNKS, kind="chunker", udtf_spec=code)
    lake.view("sentences").refresh()
    assert lake.table("sentences").to_arrow().sort_by([("id", "ascending"), ("number", "ascending")]).to_pylist() == [
        {"id": 1, "number": 0, "chunk": "The cat is on the mat.", "start": 0},
        {"id": 1, "number": 1, "chunk": "It was there for an hour.", "start": 23},
        {"id": 3, "number": 0, "chunk": "Der Hund ist nicht auf dem Sofa.", "start": 0},
    ]
    computed = ["vector", "chunks", "language", "masked", "pixels"]
    pages.ingest(pa.table({"id": [4], "text": ["One more."], "image": [b""]}), mode="append", null=computed)
    assert lake.view("sentences").refresh().figures["mode"] == "incremental"
    assert pages.backfill("vector").rows == 1

    with pytest.raises(InvalidInputError, match="embed_text needs model"):
        pages.add_column("other", embed_text, inputs="text")
    with pytest.raises(InvalidInputError, match="detect_language takes a column of text, and this one is int64"):
        pages.add_column("other", detect_language, inputs="id")
    with pytest.raises(InvalidInputError, match="has the form of a ready-made one, of a column"):
        pages.ingest(PAGES, mode="append", udf="detect_language")
    assert "other" not in pages.to_arrow().schema.names
