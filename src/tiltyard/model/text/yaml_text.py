"""YAML that people write: read safely and within bounds, with the line of what is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from lance_namespace.errors import InvalidInputError

if TYPE_CHECKING:
    from types import ModuleType

    import yaml

T = TypeVar("T")

_PATH_PART = re.compile(r"\.([^.\[\]`]+)|\[(\d+|\.\.\.)\]")
MAX_YAML_DEPTH = 64
"""How deep mappings and lists of a file may be within each other."""
MAX_YAML_NODES = 4_000_000
"""Texts, mappings and lists of one file."""


class ContentError(InvalidInputError):
    """Content of a file that cannot be: `path` holds the keys and positions that lead to the error."""

    def __init__(self, path: Sequence[str | int], sentence: str) -> None:
        super().__init__(f"{format_path(path)}: {sentence}" if path else sentence)
        self.path = tuple(path)
        self.sentence = sentence


def format_path(path: Sequence[str | int]) -> str:
    """Format a path: `tables.films.indexes[0]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def convert_content(content: Any, model: Any, path: Sequence[str | int]) -> Any:
    """Convert content at a path of a file to a model. Raises ContentError."""
    try:
        return msgspec.convert(content, model)
    except msgspec.ValidationError as error:
        sentence, _, inner_path = str(error).partition(" - at `")
        inner = _inner_path(content, inner_path)
        raise ContentError((*path, *inner), sentence) from error


def _inner_path(content: Any, text: str) -> list[str | int]:
    """Return the path of an error of msgspec, which writes `[...]` for any key of a mapping: the first one that fits.

    A key of a mapping is left out with all that follows, where the mapping has several.
    """
    path: list[str | int] = []
    for name, number in _PATH_PART.findall(text):
        step: str | int = int(number) if number.isdigit() else name
        if number == "...":
            if not isinstance(content, Mapping) or len(content) != 1:
                break
            step = str(next(iter(content)))
        path.append(step)
        try:
            content = content[step]
        except (KeyError, IndexError, TypeError):
            break
    return path


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """The content of a YAML file, and where in the file each part of it is."""

    name: str
    content: Any
    _node: yaml.Node | None = field(repr=False)

    @contextmanager
    def locating_errors(self) -> Iterator[None]:
        """Raise InvalidInputError, with the file and the line, where the block raises ContentError."""
        try:
            yield
        except ContentError as error:
            raise InvalidInputError(f"{self.name}, line {_line_of(self._node, error)}: {error}") from error


def parse_yaml(name: str, text: str, *, anchors: bool = True) -> YamlDocument:
    """Parse the text of a file, `name` in messages. Anchors of YAML, by which content is repeated, may be refused.

    Raises InvalidInputError: what is no YAML, a duplicate key, of which YAML would take the last one, a tag that makes
    an object, what is deeper or longer than a file may be.
    """
    import yaml  # noqa: PLC0415  # it takes long, and few commands read YAML

    loader_type: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_events(yaml, name, text, loader_type, anchors=anchors)
        loader = loader_type(text)
        node = loader.get_single_node()
        document = YamlDocument(name, None, node)
        with document.locating_errors():
            _check_duplicate_keys(node)
        return YamlDocument(name, None if node is None else loader.construct_document(node), node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise InvalidInputError(f"{name}{line}: this is not YAML: {getattr(error, 'problem', error)}.") from error


def _check_events(yaml: ModuleType, name: str, text: str, loader: Any, *, anchors: bool) -> None:
    """Raise InvalidInputError for a text that is too deep or too long, before anything is made of it."""
    depth, nodes = 0, 0
    for event in yaml.parse(text, Loader=loader):
        place = f"{name}, line {event.start_mark.line + 1}"
        if isinstance(event, yaml.NodeEvent):
            nodes += 1
            if not anchors and event.anchor is not None:
                raise InvalidInputError(f"{place}: anchors and aliases (& and *) are not read: write it twice.")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_YAML_DEPTH:
            raise InvalidInputError(f"{place}: this is nested more than {MAX_YAML_DEPTH} deep.")
        if nodes > MAX_YAML_NODES:
            raise InvalidInputError(f"{place}: a file has at most {MAX_YAML_NODES} texts, mappings and lists.")


def _check_duplicate_keys(node: yaml.Node | None, path: tuple[str | int, ...] = ()) -> None:
    """Raise ContentError for a duplicate key, of which YAML would take the last one."""
    if node is None or isinstance(node.value, str):
        return
    keys = set()
    for number, child in enumerate(node.value):
        if not isinstance(child, tuple):
            _check_duplicate_keys(child, (*path, number))
            continue
        key = str(child[0].value)
        if key in keys:
            raise ContentError((*path, key), "this key occurs twice.")
        keys.add(key)
        _check_duplicate_keys(child[1], (*path, key))


def _line_of(node: yaml.Node | None, error: ContentError) -> int:
    """Return the line of the key that an error is about, or of the mapping around it."""
    line = 1
    current = node
    for part in [*error.path, *error.sentence.split("`")[1::2]]:
        if current is None or isinstance(current.value, str):
            break
        if isinstance(part, int):
            current = current.value[part]
            line = current.start_mark.line + 1
            continue
        pairs = [pair for pair in current.value if isinstance(pair, tuple) and str(pair[0].value) == part]
        if not pairs:
            break
        line, current = pairs[-1][0].start_mark.line + 1, pairs[-1][1]
    return line
