"""Every error of Lance that users can cause, provoked for real: its kind, and that nothing of the inside shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace import errors

from tiltyard.storage.errors import is_conflict, lance_errors, translate_error

NULLABLE = pa.schema([pa.field("id", pa.int64(), nullable=False)])


def rows(count: int = 4) -> pa.Table:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(count * 4, "f4")), 4)
    return pa.table({"id": pa.array(range(count), pa.int64()), "name": [f"n{i}" for i in range(count)], "v": vectors})


@pytest.fixture
def dataset(tmp_path: Path) -> lance.LanceDataset:
    return lance.write_dataset(rows(), str(tmp_path / "t.lance"))


def append(ds: lance.LanceDataset, table: pa.Table) -> None:
    lance.write_dataset(table, ds.uri, mode="append")


Case = tuple[Callable[[lance.LanceDataset], Any], type[Exception]]

CASES: dict[str, Case] = {
    "open_missing": (lambda ds: lance.dataset(ds.uri + "x"), errors.InvalidTableStateError),
    "version_missing": (lambda ds: ds.checkout_version(99), errors.TableVersionNotFoundError),
    "tag_missing": (lambda ds: ds.checkout_version("zz"), errors.TableTagNotFoundError),
    "branch_missing": (lambda ds: ds.checkout_version(("bb", None)), errors.TableBranchNotFoundError),
    "create_exists": (lambda ds: lance.write_dataset(rows(), ds.uri, mode="create"), errors.TableAlreadyExistsError),
    "append_type": (lambda ds: append(ds, pa.table({"id": ["a"]})), errors.TableSchemaValidationError),
    "append_unknown": (lambda ds: append(ds, pa.table({"x": [1]})), errors.TableSchemaValidationError),
    "filter_unknown": (lambda ds: ds.to_table(filter="nope > 1"), errors.TableColumnNotFoundError),
    "filter_syntax": (lambda ds: ds.to_table(filter="id >"), errors.InvalidInputError),
    "filter_type": (lambda ds: ds.to_table(filter="id = 'abc'"), errors.InvalidInputError),
    "filter_function": (lambda ds: ds.to_table(filter="foo(id) = 1"), errors.InvalidInputError),
    "filter_number": (lambda ds: ds.to_table(filter="id + 1"), errors.InvalidInputError),
    "filter_zero": (lambda ds: ds.to_table(filter="id / 0 > 1"), errors.InvalidInputError),
    "filter_subquery": (lambda ds: ds.to_table(filter="id in (select 1)"), errors.InvalidInputError),
    "columns_unknown": (lambda ds: ds.to_table(columns=["nope"]), errors.TableColumnNotFoundError),
    "columns_expression": (lambda ds: ds.to_table(columns={"x": "id +"}), errors.InvalidInputError),
    "columns_large_pattern": (
        lambda ds: ds.to_table(columns={"x": "regexp_like(name, '((((a{100}){100}){100}){100})')"}),
        errors.InvalidInputError,
    ),
    "nearest_unknown": (
        lambda ds: ds.to_table(nearest={"column": "zz", "q": [0] * 4, "k": 1}),
        errors.TableColumnNotFoundError,
    ),
    "nearest_dimension": (
        lambda ds: ds.to_table(nearest={"column": "v", "q": [0] * 3, "k": 1}),
        errors.InvalidInputError,
    ),
    "nearest_number": (
        lambda ds: ds.to_table(nearest={"column": "id", "q": [0] * 4, "k": 1}),
        errors.InvalidInputError,
    ),
    "text_no_index": (lambda ds: ds.to_table(full_text_query="fox"), errors.InvalidInputError),
    "text_unknown": (
        lambda ds: ds.to_table(full_text_query={"query": "fox", "columns": ["zz"]}),
        errors.TableColumnNotFoundError,
    ),
    "delete_unknown": (lambda ds: ds.delete("nope = 1"), errors.TableColumnNotFoundError),
    "delete_syntax": (lambda ds: ds.delete("id ="), errors.InvalidInputError),
    "update_unknown": (lambda ds: ds.update({"nope": "1"}), errors.TableColumnNotFoundError),
    "update_expression": (lambda ds: ds.update({"id": "nope"}), errors.TableColumnNotFoundError),
    "update_syntax": (lambda ds: ds.update({"id": "1 +"}), errors.InvalidInputError),
    "update_cast": (lambda ds: ds.update({"id": "'abc'"}), errors.InvalidInputError),
    "update_where": (lambda ds: ds.update({"id": "1"}, where="zz = 1"), errors.TableColumnNotFoundError),
    "merge_key": (
        lambda ds: ds.merge_insert("nope").when_not_matched_insert_all().execute(rows()),
        errors.TableColumnNotFoundError,
    ),
    "merge_nothing": (lambda ds: ds.merge_insert("id").execute(rows()), errors.InvalidInputError),
    "merge_filter": (
        lambda ds: ds.merge_insert("id").when_matched_update_all("source.zz = 1").execute(rows()),
        errors.TableColumnNotFoundError,
    ),
    "merge_ambiguous": (
        lambda ds: ds.merge_insert("id").when_matched_update_all().execute(pa.concat_tables([rows(), rows()])),
        errors.InvalidInputError,
    ),
    "merge_schema": (
        lambda ds: ds.merge_insert("id").when_not_matched_insert_all().execute(pa.table({"id": [1], "zz": [2]})),
        errors.TableSchemaValidationError,
    ),
    "column_exists": (lambda ds: ds.add_columns({"id": "1"}), errors.InvalidInputError),
    "column_expression": (lambda ds: ds.add_columns({"zz": "nope + 1"}), errors.TableColumnNotFoundError),
    "drop_unknown": (lambda ds: ds.drop_columns(["nope"]), errors.TableColumnNotFoundError),
    "drop_all": (lambda ds: ds.drop_columns(["id", "name", "v"]), errors.InvalidInputError),
    "alter_unknown": (lambda ds: ds.alter_columns({"path": "nope", "name": "b"}), errors.TableColumnNotFoundError),
    "alter_cast": (
        lambda ds: ds.alter_columns({"path": "name", "data_type": pa.int32()}),
        errors.InvalidInputError,
    ),
    "alter_taken": (
        lambda ds: ds.alter_columns({"path": "name", "name": "id"}),
        errors.TableSchemaValidationError,
    ),
    "index_unknown_column": (lambda ds: ds.create_scalar_index("nope", "BTREE"), errors.TableColumnNotFoundError),
    "index_unknown_type": (lambda ds: ds.create_scalar_index("id", "ZZ"), errors.UnsupportedOperationError),
    "index_vector_btree": (lambda ds: ds.create_scalar_index("v", "BTREE"), errors.InvalidInputError),
    "index_drop_unknown": (lambda ds: ds.drop_index("nope"), errors.TableIndexNotFoundError),
    "index_stats_unknown": (lambda ds: ds.stats.index_stats("nope"), errors.TableIndexNotFoundError),
    "tag_exists": (lambda ds: [ds.tags.create("a", 1) for _ in range(2)], errors.TableTagAlreadyExistsError),
    "tag_version": (lambda ds: ds.tags.create("b", 991), errors.TableVersionNotFoundError),
    "tag_name": (lambda ds: ds.tags.create("b/../c ", 1), errors.InvalidInputError),
    "tag_delete": (lambda ds: ds.tags.delete("zzz"), errors.TableTagNotFoundError),
    "branch_exists": (
        lambda ds: [ds.create_branch("bb") for _ in range(2)],
        errors.TableBranchAlreadyExistsError,
    ),
    "branch_name": (lambda ds: ds.create_branch("../x"), errors.InvalidInputError),
    "branch_delete": (lambda ds: ds.branches.delete("zzz"), errors.TableBranchNotFoundError),
    "write_duplicate": (
        lambda ds: lance.write_dataset(pa.Table.from_arrays([pa.array([1])] * 2, names=["a", "a"]), ds.uri + "2"),
        errors.TableSchemaValidationError,
    ),
    "write_dot": (
        lambda ds: lance.write_dataset(pa.table({"a.b": [1]}), ds.uri + "3"),
        errors.TableSchemaValidationError,
    ),
    "data_missing": (
        lambda ds: ([file.unlink() for file in Path(ds.uri, "data").iterdir()], lance.dataset(ds.uri).to_table()),
        errors.InvalidTableStateError,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_lance_errors_user_mistake_is_the_specifications_error(name: str, dataset: lance.LanceDataset) -> None:
    provoke, expected = CASES[name]
    with pytest.raises(errors.LanceNamespaceError) as caught, lance_errors(dataset):
        provoke(dataset)
    assert caught.type is expected, caught.value
    message = str(caught.value)
    for inside in (
        ".rs:",
        "/home/",
        dataset.uri.strip("/"),
        "LanceError",
        "SELECT 1 FROM t",
        "Schema {",
        "Invalid user input",
    ):
        assert inside not in message
    assert message.endswith((".", "?"))
    assert "\n" not in message
    if expected is errors.TableColumnNotFoundError:
        assert "id, name, v" in message


def test_lance_errors_null_in_required_column_is_schema_validation(tmp_path: Path) -> None:
    ds = lance.write_dataset(pa.table({"id": [1]}, schema=NULLABLE), str(tmp_path / "n.lance"))
    for table in (
        pa.table({"id": pa.array([None], pa.int64())}),
        pa.table({"id": pa.array([None], pa.int64())}, NULLABLE),
    ):
        with pytest.raises(errors.TableSchemaValidationError, match="id"), lance_errors(ds):
            append(ds, table)


def test_lance_errors_overwritten_meanwhile_is_concurrent_modification(dataset: lance.LanceDataset) -> None:
    lance.write_dataset(rows(), dataset.uri, mode="overwrite")
    with pytest.raises(errors.ConcurrentModificationError) as caught, lance_errors(dataset):
        dataset.delete("id = 1")
    assert is_conflict(caught.value)


def test_lance_errors_unreachable_store_is_service_unavailable() -> None:
    options = {
        "aws_endpoint": "http://127.0.0.1:9", "allow_http": "true", "aws_access_key_id": "a",
        "aws_secret_access_key": "b", "region": "us-east-1", "client_max_retries": "0", "retry_timeout": "1s",
    }  # fmt: skip
    with pytest.raises(errors.ServiceUnavailableError), lance_errors():
        lance.dataset("s3://bucket/x", storage_options=options)


def test_lance_errors_unforeseen_passes_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), lance_errors():
        1 / 0  # noqa: B018  # the error is the point
    assert translate_error(RuntimeError("who knows")) is None


@pytest.mark.parametrize("text", ["x" * 1_000_000, "a/" * 500_000, "No field named " + "x" * 1_000_000])
def test_error_with_a_long_text_of_a_client_is_told_in_no_time(text: str) -> None:
    started_at = time.process_time()
    translated = translate_error(ValueError(f"Invalid user input: {text}, /root/lance/rust/x.rs:1:2"))
    assert isinstance(translated, errors.InvalidInputError) and len(str(translated)) < 600
    assert time.process_time() - started_at < 2  # a look from each letter to the end would take hours


def test_missing_file_with_403_in_its_name_is_no_refusal() -> None:
    text = "LanceError(IO): Not found: /t/data/1403e4032403.lance, /home/x/rust/lance-io/src/local.rs:131:17"
    assert isinstance(translate_error(OSError(text)), errors.InvalidTableStateError)
    refused = "LanceError(IO): Generic S3 error: Server returned non-2xx status code: 403: , src/x.rs:1:1"
    assert isinstance(translate_error(OSError(refused)), errors.PermissionDeniedError)
