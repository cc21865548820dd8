"""What the store's repositories share: a base class that gives each method its connection and its transaction, one of
what they read, the SQL that resolves a path of names, the form of columns, and the counters of changes.

Generations tell each server when its cached copy of something is out of date. Every change counts its generation up in
the same transaction; a server that reads another number than before drops what it has cached.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import wraps
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Literal,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from lance_namespace.errors import (
    InvalidInputError,
    NamespaceNotFoundError,
    ServiceUnavailableError,
    TableNotFoundError,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from tiltyard.store.backend import Connection, Database, Row

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound="Repository")
Clock = Callable[[], int]
Runner = Literal["read", "write", "write_statement"]
"""The method of a database that runs a call."""

Path = tuple[str, ...]
"""The names from the root to a namespace or a table; () is the root namespace."""

Properties = Mapping[str, str]


class Repository:
    """Base of the classes that hold the methods for one entity (`Namespaces`, `Tables`, …).

    An instance is either bound to the connection of an open transaction, or unbound: then each call runs in a
    transaction (or a read) of its own. So each method is written once and serves both.
    """

    __slots__ = ("_bound", "_clock", "_database")

    def __init__(self, database: Database, clock: Clock, bound: Connection | None = None) -> None:
        """Use a database, and a connection of it if the methods are to join that one's transaction.

        `clock` returns the time in ms since 1970.
        """
        self._database = database
        self._clock = clock
        self._bound = bound

    def bind(self, connection: Connection) -> Self:
        """Return the same methods bound to a connection."""
        return type(self)(self._database, self._clock, connection)

    def run(self, runner: Runner, name: str, work: Callable[[Connection], T]) -> T:
        """Run the work of the method `name` in a transaction (or a read) of its own."""
        run: Callable[[Callable[[Connection], T]], T] = getattr(self._database, runner)
        return run(work)

    @property
    def connection(self) -> Connection:
        """The connection, inside a method decorated with `reads` or `writes`."""
        if self._bound is None:
            raise RuntimeError("only methods decorated with `reads` or `writes` have a connection")
        return self._bound


Method: TypeAlias = Callable[Concatenate[R, P], T]


def reads(method: Method[R, P, T]) -> Method[R, P, T]:
    """Decorate a method that only reads."""
    return _run_by(method, "read")


def writes(method: Method[R, P, T]) -> Method[R, P, T]:
    """Decorate a method that writes: in the transaction that it is bound to, or in one of its own."""
    return _run_by(method, "write")


def writes_one_statement(method: Method[R, P, T]) -> Method[R, P, T]:
    """Decorate an idempotent method that writes by a single statement and returns the same when run again.

    So it needs no transaction around it, and is retried after a lost connection.
    """
    return _run_by(method, "write_statement")


def _run_by(method: Method[R, P, T], runner: Runner) -> Method[R, P, T]:
    """Return the method; an unbound repository runs it by this method of its database."""

    name = method.__name__

    @wraps(method)
    def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._bound is not None:
            return method(self, *args, **kwargs)
        return self.run(runner, name, lambda connection: method(self.bind(connection), *args, **kwargs))

    return call


class Record(msgspec.Struct, frozen=True):
    """Base of what is read of the catalog: its fields are the columns of a query, in their order.

    Their types say what the columns have: JSON of mappings and paths, values of enumerations, 0 and 1 of bool.
    A class names its COLUMNS itself where those of the query have other names. They are structs, since every request
    creates some: in a fifth of the time of a frozen dataclass.
    """

    COLUMNS: ClassVar[str]
    _DECODERS: ClassVar[tuple[tuple[int, Callable[[Any], Any]], ...]]

    def __init_subclass__(cls) -> None:
        """Find out how a row is decoded, once for each class."""
        types = get_type_hints(cls)
        names = [name for name in cls.__annotations__ if get_origin(types[name]) is not ClassVar]
        if "COLUMNS" not in vars(cls):
            cls.COLUMNS = ", ".join(names)
        decoders = ((index, _decoder(types[name])) for index, name in enumerate(names))
        cls._DECODERS = tuple((index, decoder) for index, decoder in decoders if decoder)

    @classmethod
    def columns_of(cls, table: str) -> str:
        """Return COLUMNS with the name of their table before each."""
        return ", ".join(f"{table}.{column}" for column in cls.COLUMNS.split(", "))

    @classmethod
    def of(cls, row: Row) -> Self:
        """Read a row of COLUMNS; the fields after its last value have their defaults."""
        values = list(row)
        for index, decoder in cls._DECODERS:
            if index < len(values) and values[index] is not None:
                values[index] = decoder(values[index])
        create: Callable[..., Self] = cls
        return create(*values)

    @property
    def row(self) -> Row:
        """The values of COLUMNS, as `of` reads them."""
        values: Row = msgspec.structs.astuple(self)
        return tuple(encode(value) if isinstance(value, (dict, tuple)) else value for value in values)


def _decoder(field_type: Any) -> Callable[[Any], Any] | None:
    """Return what makes a field of this type, or of this type and None, of its column; None: nothing has to."""
    parts = get_args(field_type)
    kind = next(part for part in parts if part is not NoneType) if NoneType in parts else field_type
    if kind is bool or (isinstance(kind, type) and issubclass(kind, StrEnum)):
        return kind
    if kind == Path:
        return _decode_path
    return decode if get_origin(kind) in (dict, Mapping) else None


FRESH_SECONDS = 0.05
"""How long a server uses what it has cached without reading the generation: changes take effect everywhere by then."""
IDENTITY_GENERATION = "identity"
"""The generation of principals, API keys and signing keys."""
GRANTS_GENERATION = "grants"
"""The generation of roles, grants and policies."""
MOUNTS_GENERATION = "mounts"
"""The generation of mounts."""
PROTECTIONS_GENERATION = "protections"
"""The generation of protections."""

READ = "SELECT number FROM generations WHERE name = ?"
COUNT_UP = "UPDATE generations SET number = number + 1 WHERE name = ?"


def count_up(connection: Connection, name: str) -> None:
    """Count a generation up, in the transaction of the change."""
    connection.change(COUNT_UP, name)


class Generations(Repository):
    """The method for generations."""

    __slots__ = ()

    @reads
    def generation(self, name: str) -> int:
        """Return the current number of a generation."""
        return int(self.connection.rows(READ, name)[0][0])


ROOT = 1
"""The id of the root namespace."""

NESTED = 8
"""Levels resolved inside one statement; SQLite's parser gives up at about a hundred."""


def at_depth(sql: str, depth: int) -> str:
    """Replace `{namespace}` with the sub-select for a namespace `depth` names below a given id."""
    inner = "?"
    for _ in range(depth):
        inner = f"(SELECT id FROM namespaces WHERE parent_id = {inner} AND name = ?)"  # noqa: S608  # only constants
    return sql.replace("{namespace}", inner)


def resolve_prefix(connection: Connection, path: Path, base: int = ROOT) -> tuple[int, Path]:
    """Resolve the first names of a path until few enough for `at_depth` remain; return the id there and the remainder.

    That is `base`, which the path begins at, and the whole path, unless it is deep. Raises NamespaceNotFoundError where
    a prefix is missing.
    """
    remainder = path
    while len(remainder) > NESTED:
        row = connection.row(at_depth("SELECT {namespace}", NESTED), base, *remainder[:NESTED])
        if row is None or row[0] is None:
            raise namespace_not_found(path)
        base, remainder = row[0], remainder[NESTED:]
    return base, remainder


def namespace_id(connection: Connection, path: Path, expected_id: int | None = None) -> int:
    """Return the id of a namespace. Raises NamespaceNotFoundError, also if it has not the `expected_id` (any more)."""
    if not path:
        return ROOT
    base, names = resolve_prefix(connection, path)
    row = connection.row(at_depth("SELECT {namespace}", len(names)), base, *names)
    if row is None or row[0] is None or expected_id not in (None, row[0]):
        raise namespace_not_found(path)
    return int(row[0])


def namespace_not_found(path: Path) -> NamespaceNotFoundError:
    """Create the error for a namespace that does not exist."""
    return NamespaceNotFoundError(f"Namespace not found: {display_path(path)}")


def table_not_found(path: Path) -> TableNotFoundError:
    """Create the error for a table that does not exist."""
    return TableNotFoundError(f"Table not found: {display_path(path)}")


def check_not_mounted(mount_id: int | None, path: Path) -> None:
    """Raise ServiceUnavailableError if a namespace is, or is below, a mount: what is in it, another catalog decides.

    Requests below a mount take another way, but for those in the second before this server knows of a new mount.
    """
    if mount_id is not None:
        raise ServiceUnavailableError(f"A catalog was just mounted here, try again: {display_path(path)}")


def encode(value: object) -> str:
    """Encode a value as JSON for a column; in ASCII, which every database takes."""
    return "{}" if value == {} else json.dumps(value, separators=(",", ":"))


def decode(text: str) -> Any:
    """Decode a column of JSON."""
    return {} if text == "{}" else json.loads(text)


def _decode_path(text: str) -> Path:
    return tuple(json.loads(text))


def placeholders(values: Collection[object]) -> str:
    """Return the SQL placeholders for a list of values."""
    return ", ".join("?" * len(values))


def parent_folders(location: str) -> list[str]:
    """Return the folders that contain a location, the outermost first."""
    parts = location.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def display_path(path: Path) -> str:
    """Format a path for messages."""
    return "$".join(path) if path else "the root namespace"


def split_path(path: Path) -> tuple[Path, str]:
    """Split a path into its parent and its last name. Raises InvalidInputError for the root and for a name with NUL."""
    if not path:
        raise InvalidInputError("The root namespace cannot be created, dropped or used as a table")
    if "\0" in path[-1]:  # SQLite would take it, PostgreSQL does not
        raise InvalidInputError("A name cannot contain the character NUL")
    return path[:-1], path[-1]
