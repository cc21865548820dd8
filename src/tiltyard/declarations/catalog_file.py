"""The file that declares a catalog: YAML with a section for each kind of objects, read with its bounds, and written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError

from tiltyard.declarations.kind import id_of, normalize_id
from tiltyard.declarations.kinds import KINDS
from tiltyard.model.text.typed_ids import format_id
from tiltyard.model.text.yaml_text import ContentError, parse_yaml

if TYPE_CHECKING:
    from tiltyard.declarations.kind import Kind

VERSION = 1
"""The version of the file's form, its key `version`."""
MAX_FILE_BYTES = 64 << 20
"""The size of a file: about a million columns."""
MAX_DECLARED = 100_000
"""Objects that one file declares."""
_VARIABLE = re.compile(r"(\$?)\$\{env:([A-Za-z_][A-Za-z0-9_]{0,254})\}")
_VARIABLE_START = "${env:"


@dataclass(frozen=True, slots=True)
class CatalogFile:
    """What a file declares: the declarations of each section that it has, by name; all of it `within` a namespace.

    `values` are those of environment variables by what stands for them in the file: plans show that instead.
    """

    folder: Path
    sections: Mapping[str, Mapping[str, Any]]
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    within: Sequence[str] = ()


def read_catalog_file(file: Path, environ: Mapping[str, str]) -> CatalogFile:
    """Read a file, with the values of `environ` for `${env:NAME}` in texts. Raises InvalidInputError with the line."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
        text = content.decode()
    except OSError as error:
        raise InvalidInputError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{file} is no text in UTF-8.") from error
    if len(content) > MAX_FILE_BYTES:
        raise InvalidInputError(
            f"{file} is larger than {MAX_FILE_BYTES >> 20} MiB: declare the catalog in several files."
        )
    return parse_catalog(str(file), text, file.parent, environ)


def parse_catalog(name: str, text: str, folder: Path, environ: Mapping[str, str]) -> CatalogFile:
    """Parse the text of a file, `name` in messages. Raises InvalidInputError with the line."""
    document = parse_yaml(name, text, anchors=False)
    values: dict[str, str] = {}
    with document.locating_errors():
        content = _substitute(document.content, environ, values, ())
        sections = _parse_sections(content)
        within = _parse_within(content.get("within"), sections)
        return CatalogFile(folder, sections, values, within)


def _parse_sections(content: Any) -> dict[str, dict[str, Any]]:
    """Return the declarations of each section. Raises ContentError."""
    kinds = {kind.section: kind for kind in KINDS}
    if not isinstance(content, Mapping):
        raise ContentError((), f"a catalog is a mapping with the key 'version' and sections: {', '.join(kinds)}.")
    if content.get("version") != VERSION or isinstance(content["version"], bool):
        raise ContentError(
            ("version",) if "version" in content else (), f"write 'version: {VERSION}', the form of this file."
        )
    sections = {
        key: {} if value is None else value for key, value in content.items() if key not in ("version", "within")
    }
    for key, value in sections.items():
        if key not in kinds:
            raise ContentError((str(key),), f"there is no such section: there are {', '.join(kinds)}.")
        if not isinstance(value, Mapping):
            raise ContentError((key,), "a section is a mapping of names to what is declared.")
    if sum(map(len, sections.values())) > MAX_DECLARED:
        raise ContentError((), f"a file declares at most {MAX_DECLARED} objects: make several files.")
    return {key: _parse_section(kinds[key], value) for key, value in sections.items()}


def _parse_within(content: Any, sections: Mapping[str, Mapping[str, Any]]) -> Sequence[str]:
    """Return the namespace that a file is about, the root without one. Raises ContentError."""
    if content is None:
        return ()
    if not isinstance(content, str):
        raise ContentError(("within",), "name a namespace.")
    namespace = id_of(normalize_id(content, ("within",)))
    for kind in KINDS:
        for name in sections.get(kind.section, ()):
            if not kind.is_within(name, namespace):
                raise ContentError((kind.section, name), f"this is not within {content}, which the file is about.")
    return namespace


def _parse_section(kind: Kind[Any], content: Mapping[Any, Any]) -> dict[str, Any]:
    declared: dict[str, Any] = {}
    for written, value in content.items():
        path = (kind.section, str(written))
        if not isinstance(written, str):
            raise ContentError(path, "a name is a text: put it in quotes.")
        name, declaration = kind.parse(written, value, path)
        if name in declared:
            raise ContentError(path, f"this is {name}, which is declared above already.")
        declared[name] = declaration
    return declared


def _substitute(content: Any, environ: Mapping[str, str], values: dict[str, str], path: Sequence[str | int]) -> Any:
    """Return content with the values of environment variables, which are noted in `values`. Raises ContentError."""
    if isinstance(content, Mapping):
        return {key: _substitute(value, environ, values, (*path, str(key))) for key, value in content.items()}
    if isinstance(content, list):
        return [_substitute(value, environ, values, (*path, number)) for number, value in enumerate(content)]
    if not isinstance(content, str) or _VARIABLE_START not in content:
        return content

    def find(match: re.Match[str]) -> str:
        if match[1]:
            return match[0][1:]
        if match[2] not in environ:
            raise ContentError(path, f"the environment variable {match[2]} is not set.")
        values[match[0]] = environ[match[2]]
        return environ[match[2]]

    return _VARIABLE.sub(find, content)


def format_catalog(sections: Mapping[str, Mapping[str, Any]], within: Sequence[str] = ()) -> str:
    """Return the text of a file, always the same for the same declarations."""
    kinds = {kind.section: kind for kind in KINDS}
    content: dict[str, Any] = {"version": VERSION, **({"within": format_id(within)} if within else {})}
    for section, kind in kinds.items():
        if section in sections:
            declared = sections[section]
            content[section] = {name: _escape(kind.content(declared[name])) for name in sorted(declared)}
    return _dump(content)


def _escape(content: Any) -> Any:
    """Return content in which no text is taken for a variable."""
    if isinstance(content, dict):
        return {key: _escape(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_escape(value) for value in content]
    return content.replace(_VARIABLE_START, f"${_VARIABLE_START}") if isinstance(content, str) else content


MAX_INLINE_CHARACTERS = 100
"""Lists of plain values up to this length stand on one line."""


def _dump(content: Mapping[str, Any]) -> str:
    """Return YAML: mappings in their order, texts of several lines as blocks, short lists on one line."""
    import yaml  # noqa: PLC0415  # it takes long, and few commands write YAML

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(base):  # type: ignore[misc]  # one of two
        """Writes blocks and short lists."""

        def ignore_aliases(self, data: Any) -> bool:
            """Write everything where it belongs."""
            return True

    def represent_text(dumper: Any, text: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    def represent_list(dumper: Any, values: list[Any]) -> Any:
        is_short = not any(isinstance(each, dict | list) for each in values)
        is_short = is_short and sum(len(str(each)) + 2 for each in values) <= MAX_INLINE_CHARACTERS
        return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=is_short)

    Dumper.add_representer(str, represent_text)
    Dumper.add_representer(list, represent_list)
    text: str = yaml.dump(
        dict(content), Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=1 << 20
    )
    return text
