"""Parse manifests: real ones of tables with few and many fragments, and truncated ones."""

from __future__ import annotations

import struct
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard.storage.manifests.manifest_format import classified_fields, parse_manifest
from tiltyard.storage.manifests.manifest_references import referenced_files

FOOTER = struct.Struct("<QHH4s")


def latest_manifest(dataset: lance.LanceDataset, folder: Path) -> bytes:
    """Read the last section of the latest version's manifest: a message after its length, and the footer."""
    content = (folder / "_versions" / f"{2**64 - 1 - dataset.version:020}.manifest").read_bytes()
    position, *versions = FOOTER.unpack(content[-FOOTER.size :])
    return content[position : -FOOTER.size] + FOOTER.pack(0, *versions)


def with_fragments(path: Path, *, fragments: int, columns: int) -> lance.LanceDataset:
    """Create a table of so many fragments; each takes at least four bytes a column in the manifest."""
    rows = pa.table({f"column_{number}": range(fragments) for number in range(columns)})
    return lance.write_dataset(rows, path, max_rows_per_file=1, data_storage_version="2.0")


@pytest.mark.parametrize(("fragments", "columns"), [(1, 1), (300, 1), (40, 100), (3, 4500)])
def test_parse_manifest_after_fragments_of_any_size_has_the_version(
    tmp_path: Path, fragments: int, columns: int
) -> None:
    dataset = with_fragments(tmp_path / "t", fragments=fragments, columns=columns)
    content = latest_manifest(dataset, tmp_path / "t")
    manifest = parse_manifest(content, dataset.version)
    assert (manifest.version, manifest.bases, manifest.code_declarations) == (dataset.version, [], [])
    assert manifest.has_transaction and manifest.transaction_file.endswith(".txn")
    with pytest.raises(InvalidInputError, match=f"of version {dataset.version}, not 9999"):
        parse_manifest(content, 9999)


@pytest.mark.parametrize("branch", [None, "dev"])
def test_referenced_files_are_those_that_a_cleanup_leaves(tmp_path: Path, branch: str | None) -> None:
    rows = pa.table({"id": range(8000), "word": [f"w{number}" for number in range(8000)]})
    dataset = lance.write_dataset(rows, tmp_path / "t", max_rows_per_file=7000)
    dataset.create_scalar_index("id", "BTREE")
    folder = tmp_path / "t"
    if branch:
        folder /= f"tree/{branch}"
        dataset = dataset.create_branch(branch)
    for _ in range(2):
        dataset.create_scalar_index("word", "INVERTED")
        dataset.update({"word": "'x'"}, "id = 7300")
        dataset.delete("id % 7000 = 7")  # one row of each fragment: a list
        dataset.delete("id < 6000")  # thousands of one: a bitmap
        dataset.insert(rows.slice(0, 300))
    content = (folder / "_versions" / f"{2**64 - 1 - dataset.version:020}.manifest").read_bytes()
    dataset.cleanup_old_versions(timedelta(0))
    existing = {
        str(path.relative_to(folder))
        for part in ("data", "_deletions", "_indices")
        for path in (folder / part).rglob("*")
        if path.is_file()
    }
    assert set(referenced_files(content)) == existing
    assert {path.rpartition(".")[2] for path in existing} == {"lance", "arrow", "bin"}


@pytest.mark.parametrize(("fragments", "columns"), [(5, 1), (3, 40)])
def test_parse_manifest_that_is_truncated_anywhere_is_refused(tmp_path: Path, fragments: int, columns: int) -> None:
    dataset = with_fragments(tmp_path / "t", fragments=fragments, columns=columns)
    content = latest_manifest(dataset, tmp_path / "t")
    message, footer = content[4 : -FOOTER.size], content[-FOOTER.size :]
    accepted, refused = 0, 0
    for end in range(len(message)):
        truncated = struct.pack("<I", end) + message[:end] + footer
        try:
            parse_manifest(truncated, dataset.version)
        except InvalidInputError:
            refused += 1
        else:  # it ends right behind a field, and the version is among those before
            accepted += 1
    assert 0 < accepted < 20 < refused


def test_parse_manifest_whose_last_field_is_a_fragment() -> None:
    message = b"\x18\x07" + b"\x12\x02ab" + b"\x12\x81\x00c"  # the last length takes more bytes than it needs
    footer = FOOTER.pack(0, 0, 3, b"LANC")
    assert parse_manifest(struct.pack("<I", len(message)) + message + footer, 7).version == 7
    for end in range(3, len(message)):
        truncated = struct.pack("<I", end) + message[:end] + footer
        if end == 6:  # right behind the first of them
            continue
        with pytest.raises(InvalidInputError, match="not a Lance manifest"):
            parse_manifest(truncated, 7)


def test_fields_that_metadata_classifies_are_read_with_their_paths(tmp_path: Path) -> None:
    street = pa.field("street", pa.string(), metadata={"tiltyard.classification.pii": "address"})
    mail = pa.field("mail", pa.string(), metadata={"tiltyard.classification.pii": "email", "unit": "none"})
    schema = pa.schema([pa.field("id", pa.int64()), mail, pa.field("home", pa.struct([street]))])
    dataset = lance.write_dataset(schema.empty_table(), tmp_path / "t", schema=schema)
    content = latest_manifest(dataset, tmp_path / "t")
    assert parse_manifest(content, 1).has_classifications
    expected = [(1, ("mail",), {"pii": "email"}), (3, ("home", "street"), {"pii": "address"})]
    assert classified_fields(content) == expected
