"""List the files that Lance's manifests name: all of a version, or those that it has and the one before it has not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from tiltyard.storage.manifests.manifest_format import (
    BASES_FIELD,
    FRAGMENTS_FIELD,
    INDICES_FIELD,
    INLINE_TRANSACTION_FIELD,
    LENGTH,
    TRANSACTION_FIELD,
    Field,
    byte_fields,
    message_fields,
    message_of,
    number_of,
    read_varint,
    top_fields,
)

_ID_FIELD = 1
"""Of a fragment, and of a base."""
_FILES_FIELD, _DELETIONS_FIELD = 2, 3
_PATH_FIELD, _SIZE_FIELD, _BASE_FIELD = 1, 6, 7
_BITMAP_FIELD, _READ_VERSION_FIELD, _DELETION_ID_FIELD, _DELETED_ROWS_FIELD = 1, 2, 3, 4
_INDEX_FIELD = 1
_UUID_FIELD, _INDEX_BASE_FIELD, _INDEX_FILES_FIELD = 1, 9, 10
_INDEX_FILE_SIZE_FIELD = 2
_BASE_IS_TABLE_FIELD, _BASE_PATH_FIELD = 3, 4


class FileReference(NamedTuple):
    """A file that a manifest names: the id of its base (None: the folder of its table or branch), and its path.

    The path of an index's files that are not listed is its folder, with a slash. `size` is in bytes, `deleted_rows` is
    how many rows a deletion file names; both are None where the manifest does not say.
    """

    base: int | None
    path: str
    size: int | None = None
    deleted_rows: int | None = None


def referenced_files(content: bytes) -> list[str]:
    """List the data, deletion and index files that a valid manifest references in the folder of its table or branch."""
    return [file.path for file in _references(content) if file.base is None and not file.path.endswith("/")]


def files_of_bases(content: bytes) -> set[str]:
    """Return the locations of the data, deletion and index files that a valid manifest references in its bases."""
    locate = _locator(top_fields(content), "")
    return {locate(file) for file in _references(content) if file.base is not None and not file.path.endswith("/")}


def all_files(content: bytes, folder: str) -> set[str]:
    """Return the locations of the data, deletion and index files that a valid manifest names, as `new_files`."""
    locate = _locator(top_fields(content), folder)
    return {locate(file) for file in _references(content)}


def new_files(
    content: bytes, fields: Sequence[Field], previous: bytes | None, folder: str
) -> list[tuple[str, FileReference]]:
    """List the files that a valid manifest names and the one before it does not, with their locations.

    They are data, deletion and index files, and the file of the transaction; `folder` is that of the table or branch,
    `fields` are the manifest's `top_fields`.
    Without one before it, those of its own folder: a branch and a clone begin with files of others.
    """
    references = list(_new_fragment_files(message_of(content), b"" if previous is None else message_of(previous)))
    if indices := list(_indices(content, fields)):
        known = set[bytes]() if previous is None else set(_indices(previous, top_fields(previous)))
        references += [file for index in indices if index not in known for file in _index_files(index)]
    if (transaction := _transaction_file(content, fields)) is not None:
        references.append(transaction)
    locate = _locator(fields, folder)
    return [(locate(file), file) for file in references if file.base is None or previous is not None]


def transaction_file(content: bytes, folder: str) -> tuple[str, FileReference] | None:
    """Return the file of the transaction that a valid manifest names, with its location; None without one."""
    file = _transaction_file(content, top_fields(content))
    return None if file is None else (f"{folder}/{file.path}", file)


def _transaction_file(content: bytes, fields: Iterable[Field]) -> FileReference | None:
    """Return the file of a manifest's transaction; its size is that of the same one in the manifest, if it is there."""
    values = dict(fields)
    name, position = values.get(TRANSACTION_FIELD), values.get(INLINE_TRANSACTION_FIELD)
    if not isinstance(name, bytes) or not name:
        return None
    size = LENGTH.unpack_from(content, position)[0] if isinstance(position, int) else None
    return FileReference(None, f"_transactions/{name.decode()}", size)


def _references(content: bytes) -> Iterator[FileReference]:
    """Iterate over the data, deletion and index files that a valid manifest names."""
    for fragment in byte_fields(message_of(content), FRAGMENTS_FIELD):
        yield from _fragment_files(fragment)
    for index in _indices(content, top_fields(content)):
        yield from _index_files(index)


def _new_fragment_files(message: bytes, before: bytes) -> Iterator[FileReference]:
    """Iterate over the data and deletion files of fragments that were added or changed.

    Both messages have fragments by ascending ids, mostly equal ones at their beginning: these are skipped. Were they in
    another order, some files would count as new that are not.
    """
    at = _end_of_equal_fragments(message, before)
    earlier = byte_fields(before[at:], FRAGMENTS_FIELD)
    previous = next(earlier, None)
    for fragment in byte_fields(message[at:], FRAGMENTS_FIELD):
        number = _fragment_id(fragment)
        while previous is not None and _fragment_id(previous) < number:
            previous = next(earlier, None)
        if previous is None or _fragment_id(previous) != number:
            yield from _fragment_files(fragment)
        elif fragment != previous:
            known = set(_fragment_files(previous))
            yield from (file for file in _fragment_files(fragment) if file not in known)


def _end_of_equal_fragments(message: bytes, before: bytes) -> int:
    """Return up to where two messages begin with the same fields, and end none of their fragments in the middle."""
    common, end = 0, min(len(message), len(before))
    while common < end:  # halving what is left takes some comparisons of memory, and no loop over bytes
        middle = (common + end + 1) // 2
        if message[common:middle] == before[common:middle]:
            common = middle
        else:
            end = middle - 1
    at = 0
    try:
        while at < common:
            if message[at] & 0x87 != 2:  # a key of one byte, with a length
                break
            length, start = message[at + 1], at + 2
            if length >= 0x80:
                length, start = read_varint(message, at + 1)
            if start + length > common:
                break
            at = start + length
    except IndexError:
        pass
    return at


def _fragment_id(fragment: bytes) -> int:
    return read_varint(fragment, 1)[0] if fragment[:1] == b"\x08" else number_of(_first_fields(fragment), _ID_FIELD)


def _first_fields(fragment: bytes) -> Mapping[int, int | bytes | None]:
    return dict(message_fields(fragment))


def _fragment_files(fragment: bytes) -> Iterator[FileReference]:
    """Iterate over a fragment's data and deletion files."""
    for file in map(dict, map(message_fields, byte_fields(fragment, _FILES_FIELD))):
        path = file[_PATH_FIELD]
        if isinstance(path, bytes):
            size = number_of(file, _SIZE_FIELD) or None
            yield FileReference(_base_of(file, _BASE_FIELD), f"data/{path.decode()}", size)
    for deletions in map(dict, map(message_fields, byte_fields(fragment, _DELETIONS_FIELD))):
        fragment_id = number_of(_first_fields(fragment), _ID_FIELD)
        read_version = number_of(deletions, _READ_VERSION_FIELD)
        deletion_id = number_of(deletions, _DELETION_ID_FIELD)
        suffix = "bin" if number_of(deletions, _BITMAP_FIELD) else "arrow"
        name = f"_deletions/{fragment_id}-{read_version}-{deletion_id}.{suffix}"
        deleted_rows = number_of(deletions, _DELETED_ROWS_FIELD) or None
        yield FileReference(_base_of(deletions, _BASE_FIELD), name, None, deleted_rows)


def _indices(content: bytes, fields: Iterable[Field]) -> Iterator[bytes]:
    """Iterate over the indices of a valid manifest."""
    section = dict(fields).get(INDICES_FIELD)
    if isinstance(section, int):
        (length,) = LENGTH.unpack_from(content, section)
        yield from byte_fields(content[section + LENGTH.size : section + LENGTH.size + length], _INDEX_FIELD)


def _index_files(index: bytes) -> Iterator[FileReference]:
    """Iterate over an index's files; its folder stands for them where its metadata does not list them."""
    fields = dict(message_fields(index))
    uuid = fields.get(_UUID_FIELD)
    if not isinstance(uuid, bytes):
        return
    folder, base = f"_indices/{UUID(bytes=next(byte_fields(uuid, _UUID_FIELD)))}", _base_of(fields, _INDEX_BASE_FIELD)
    files = [dict(message_fields(file)) for file in byte_fields(index, _INDEX_FILES_FIELD)]
    for file in files:
        path = file[_PATH_FIELD]
        if isinstance(path, bytes):
            yield FileReference(base, f"{folder}/{path.decode()}", number_of(file, _INDEX_FILE_SIZE_FIELD) or None)
    if not files:
        yield FileReference(base, f"{folder}/")


def _base_of(fields: Mapping[int, int | bytes | None], field: int) -> int | None:
    """Return the id of a file's base; None for one in the folder of its table or branch. 0 is an id."""
    return number_of(fields, field) if field in fields else None


def _locator(fields: Iterable[Field], own_folder: str) -> Callable[[FileReference], str]:
    """Return what says where a file of a valid manifest lies, whose table or branch has a folder of its own."""
    folders = dict[int, tuple[str, bool]]()
    for base in (value for key, value in fields if key == BASES_FIELD and isinstance(value, bytes)):
        base_fields = dict(message_fields(base))
        path = base_fields[_BASE_PATH_FIELD]
        assert isinstance(path, bytes)
        folder = path.decode().removeprefix("file://").rstrip("/")
        folders[number_of(base_fields, _ID_FIELD)] = folder, bool(number_of(base_fields, _BASE_IS_TABLE_FIELD))

    def locate(file: FileReference) -> str:
        if file.base is None:
            return f"{own_folder}/{file.path}"
        folder, is_table = folders[file.base]
        return f"{folder}/{file.path if is_table else file.path.removeprefix('data/')}"

    return locate
