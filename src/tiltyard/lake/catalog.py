"""A catalog to work with: its views, snapshots, schedules and training sets, and the jobs that run on its tables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, overload

import msgspec
from lance_namespace.errors import InvalidInputError

from tiltyard.calls.event_stream import StreamedEvent, read_events
from tiltyard.declarations.catalog_file import read_catalog_file
from tiltyard.declarations.plan import CatalogPlan, export_catalog, make_plan
from tiltyard.lake.classifications import Classification
from tiltyard.lake.erasures import Erasure, find_erasure, list_erasures
from tiltyard.lake.errors import translate
from tiltyard.lake.lineage import Lineage, read_lineage
from tiltyard.lake.namespace import LakeNamespace
from tiltyard.lake.operations.rebuild import Rebuild, plan_rebuild
from tiltyard.lake.operations.schedules import Duration, Schedule, create_schedule, find_schedule, list_schedules
from tiltyard.lake.operations.view_parts import Computed
from tiltyard.lake.publication import ChangedTable, not_published, open_publication
from tiltyard.lake.runs import Run
from tiltyard.lake.session import LakeSession, SparkSessions
from tiltyard.lake.snapshots import LakeMoment, Snapshot, create_snapshot, find_snapshot, list_snapshots
from tiltyard.lake.tables.arguments import Names, check_moment, list_names, present
from tiltyard.lake.tables.table import SnapshotTable, Table
from tiltyard.lake.training.definition import check_definition
from tiltyard.lake.training.training_set import (
    TrainingSet,
    create_training_set,
    find_training_set,
    list_training_sets,
)
from tiltyard.lake.views import View, create_view
from tiltyard.model.ids import Id
from tiltyard.model.lineage import DEFAULT_DEPTH
from tiltyard.model.text.typed_ids import format_id, is_server_address, parse_typed_id
from tiltyard.pipeline.catalog_client import connection
from tiltyard.pipeline.sources.filesystem import absolute_path
from tiltyard.publishing import Isolation

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tiltyard.pipeline.as_of_join import Direction


API_KEY_PROPERTY = "header.x-api-key"


def connect(
    location: str | os.PathLike[str],
    *,
    api_key: str | None = None,
    properties: Mapping[str, str] | None = None,
    storage: Mapping[str, str] | None = None,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    submit: bool = False,
) -> Lake:
    """Connect to a catalog: to a server by its URL, or to the root of a catalog that this process opens itself.

    `api_key` is for a server. `properties` are those of the namespace client (`header.authorization`, `tls.…`), of a
    root the server's settings (`db`); `storage` are options of the object store, in Lance's keys. `master`, `remote`
    and `conf` say where Spark runs, which starts with the first job that needs it: `local[*]` by default. With `submit`
    jobs are queued for the catalog's workers, unless a call says otherwise. Raises InvalidInputError.
    """
    place = os.fspath(location)
    if not place:
        raise InvalidInputError("location is empty: give the URL of a server (http://…), or the root of a catalog.")
    is_server = is_server_address(place)
    if api_key is not None and not is_server:
        raise InvalidInputError(f"api_key is for a server, and {place} is a root: leave it out, or give a URL.")
    if master and remote:
        raise InvalidInputError("master and remote both say where Spark runs: leave one out.")
    own_code = {} if is_server else {"udfs": "true"}  # of functions in this process, whose own the catalog is, too
    all_properties = {**own_code, **(properties or {}), **({} if api_key is None else {API_KEY_PROPERTY: api_key})}
    sessions = SparkSessions(master, remote, dict(conf or {}))
    return Lake(place, connection(place, all_properties, storage), sessions, submit=submit)


class Lake(LakeSession, LakeNamespace):
    """A catalog with its tables: what `tiltyard.connect` returns. Its own tables are those of the root."""

    path: tuple[str, ...] = ()

    @property
    def _lake(self) -> Lake:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close nothing: connections are shared by all lakes of a process, and closed with it."""

    def sql(self, query: str) -> pa.Table:
        """Run a SELECT over tables of the catalog (`shop.orders`), within your grants and policies; return the rows.

        A server has to serve SQL, on the port after that of HTTP. Raises
        InvalidInputError, ServiceUnavailableError (no SQL is served), UnsupportedOperationError, PermissionDeniedError.
        """
        return self.calls.query_sql(query).read_all()

    def view(self, name: str) -> View:
        """Return a materialized view by its id; it need not exist. Raises InvalidInputError."""
        return View(self, self._resolve(name, "view"))

    def create_view(
        self,
        name: str,
        sql: str,
        *,
        chunk: Computed | None = None,
        columns: Mapping[str, Computed] | None = None,
        indexes: Sequence[Mapping[str, Any]] | None = None,
        refresh: str | None = None,
    ) -> View:
        """Create a materialized view of a query in Spark's SQL, without rows: `refresh` computes them.

        Tables are named by their ids, those in namespaces in backticks (`` `shop$orders` ``). Spark infers the columns
        now, so a wrong query is an error now.

        `chunk` is a function that makes several rows of each: `chunk_words(size=200)`. `columns` are computed besides,
        by name: by functions (`embed_text(model="wordllama")`) or SQL; or by mappings with `function`, and `inputs`,
        `type` and `version` as of `add_column`. Functions are taken to be deterministic. `indexes` are mappings with
        `column` and `type`, and `name`, `metric`, `parameters`. Each refresh does rows, columns and indexes together,
        and computes what is new or changed. With `refresh` the server begins one by itself: "on change" of a table, or
        "every 5m" if one has changed.

        Raises InvalidInputError, TableNotFoundError (a source), TableAlreadyExistsError, NamespaceNotFoundError,
        UnsupportedOperationError (the server stores no code), SparkMissingError.
        """
        return create_view(self, self._resolve(name, "view"), sql, chunk, columns, indexes, refresh)

    def register_search_functions(self, spark: SparkSession | None = None) -> SparkSession:
        """Register `vector_search`, `text_search` and `hybrid_search` in a Spark session; return it.

        `SELECT * FROM vector_search('films', 'vector', array(0.1, 0.2), 10)`: they search tables of this lake, within
        your grants. Without `spark` it is this process's session. Raises SparkMissingError.
        """
        session = self.spark if spark is None else spark
        from tiltyard.pipeline.datasource.search_functions import register_search_functions  # noqa: PLC0415  # an extra

        register_search_functions(session, self.catalog)
        return session

    def as_of_join(
        self,
        left: Table | DataFrame,
        right: Table | DataFrame,
        *,
        on: Names,
        left_time: str,
        right_time: str,
        tolerance: timedelta | float | None = None,
        direction: Direction = "backward",
        allow_exact: bool = True,
        suffix: str = "",
    ) -> DataFrame:
        """Return the left side's rows with those of the right side as they were at their times (`AsOf` says which).

        Sides are tables, at a version (`table.at(moment)`), or DataFrames of Spark, and so is the result, which
        `ingest` takes. Raises InvalidInputError, TableColumnNotFoundError, TableNotFoundError, SparkMissingError.
        """
        keys = list_names(on, "on") or []
        if direction not in ("backward", "forward"):
            raise InvalidInputError(f"direction is backward or forward, not {direction!r}.")
        rows, values = (side.to_spark() if isinstance(side, Table) else side for side in (left, right))
        from tiltyard.pipeline.as_of_join import AsOf, join_as_of  # noqa: PLC0415  # an extra

        return join_as_of(rows, values, AsOf(keys, left_time, right_time, tolerance, direction, allow_exact, suffix))

    def snapshot(self, name: str, tables: Names, *, at: datetime | None = None) -> Snapshot:
        """Name the present versions of some tables, all as of one moment; they are kept until the snapshot is dropped.

        With `at`, a time with a zone, they are those that were the newest then, by their own times. Each table gets a
        tag of that name. Raises InvalidInputError, TableTagAlreadyExistsError (a snapshot, or a tag of a table, has the
        name), TableNotFoundError, TableVersionNotFoundError (none of a table is as old as `at`),
        ConcurrentModificationError (commits to the tables do not pause).
        """
        names = list_names(tables, "tables") or []
        return create_snapshot(self, name, [self._resolve(table, "table") for table in names], at)

    @overload
    def at(self, moment: str) -> Snapshot: ...

    @overload
    def at(self, moment: datetime) -> LakeMoment: ...

    def at(self, moment: str | datetime) -> Snapshot | LakeMoment:
        """Return a snapshot by its name, or a moment, to read tables as they were: `at(moment).table("films")`.

        At a moment, a time with a zone, a table has the version that was its newest. Raises TableTagNotFoundError (no
        snapshot has the name), InvalidInputError.
        """
        if isinstance(moment, str):
            return find_snapshot(self, moment)
        check_moment(moment, "moment")
        return LakeMoment(self.table, moment)

    def snapshots(self) -> list[Snapshot]:
        """Return the snapshots on whose tables you have rights, by name."""
        return list_snapshots(self)

    def erasures(self) -> list[Erasure]:
        """Return the erasures of rows that you have asked for, or whose tables you may erase from; newest first."""
        return list(list_erasures(self.calls))

    def erasure(self, erasure_id: str) -> Erasure:
        """Return an erasure: `lake.erasure(id).report()`. Raises TransactionNotFoundError."""
        return find_erasure(self.calls, erasure_id)

    def schedule(
        self,
        name: str,
        job: str,
        arguments: Mapping[str, Any],
        *,
        cron: str | None = None,
        every: Duration | None = None,
        on_commit: Names | None = None,
        zone: str | None = None,
        catch_up: bool | None = None,
        debounce: Duration | None = None,
        paused: bool = False,
    ) -> Schedule:
        """Have a job submitted by itself, with its own arguments, as `run_job` and `tiltyard job NAME` take them.

        When: by `cron` in a time `zone` (UTC by default), in an interval (`every`: seconds, "15m", a timedelta), or
        after commits of tables (`on_commit`), `debounce` after the first (5 seconds by default). With `catch_up` one
        run makes up for all times that were missed; else they are skipped. Raises InvalidInputError,
        TableNotFoundError, ConcurrentModificationError (the name is taken).
        """
        tables = [self._resolve(each, "table") for each in list_names(on_commit, "on_commit") or []]
        when = {"cron": cron, "every": every, "zone": zone, "catch_up": catch_up, "debounce": debounce}
        path = self._resolve(name, "schedule")
        return create_schedule(self, path, job, arguments, on_commit=tables, paused=paused, **when)

    def find_schedule(self, name: str) -> Schedule:
        """Return a schedule by its id (`nightly`, `shop.nightly`). Raises TableNotFoundError."""
        return find_schedule(self, self._resolve(name, "schedule"))

    def schedules(self) -> list[Schedule]:
        """Return the schedules that you have defined, or may submit the jobs of, by namespace and name."""
        return list_schedules(self)

    def training_set(
        self,
        name: str,
        table: str | Table | None = None,
        *,
        query: str | None = None,
        splits: Mapping[str, float] | None = None,
        by: Names | None = None,
        seed: int = 0,
        stratify: str | None = None,
        weights: str | Mapping[Any, float] | None = None,
        filter: str | None = None,  # noqa: A002  # Lance's own name
        columns: Names | None = None,
    ) -> TrainingSet:
        """Make a training set of a table's version, or of the rows of a query; without both, open the one of the name.

        A set that exists with the same arguments is opened. `splits` are fractions ({"train": 1} by default); all
        rows with the same values of the columns `by` are in one split, the one that later sets of the same seed and
        splits have them in, too. With `stratify` each split has its fraction of each value of that column. `weights`
        is a column, or weights by values of `stratify`: the share of such rows (0 to 1) that are in the set. `filter`
        and `columns` are in SQL and of the source. `table.at(version)` is a version, the newest one by default.
        Raises InvalidInputError, TableAlreadyExistsError (a set with other arguments, or a table),
        TableTagNotFoundError (no set has the name), TableNotFoundError, TableColumnNotFoundError,
        TableVersionNotFoundError, PermissionDeniedError.
        """
        path = self._resolve(name, "training set")
        options: dict[str, Any] = {
            "splits": splits, "by": by, "stratify": stratify, "weights": weights, "filter": filter, "columns": columns
        }  # fmt: skip
        if table is None and query is None:
            if given := [option for option, value in options.items() if value is not None] or (seed and ["seed"]):
                raise InvalidInputError(f"{given[0]} is of a new set: give its table or query, or the name alone.")
            return find_training_set(self, format_id(path))
        if table is not None and query is not None:
            raise InvalidInputError("table and query are both sources of a set: leave one out.")
        source = self.table(table) if isinstance(table, str) else table
        if source is not None and not isinstance(source, Table):
            raise InvalidInputError(f"table is a {type(table).__name__}: give a table, or its name.")
        of_query = format_id((*path[:-1], f"{path[-1]}_rows"))
        definition = check_definition(
            table=of_query if source is None else source.name, query=query, seed=seed, **options
        )
        version = source.version if isinstance(source, SnapshotTable) else None
        return create_training_set(self, path, source, definition, version=version)

    def training_sets(self) -> list[TrainingSet]:
        """Return the training sets whose tables you may read, by name."""
        return list_training_sets(self)

    def classified(self, key: str, value: str | None = None) -> list[Classification]:
        """Return the namespaces, tables and columns with a key, and a value if one is given, that you can use.

        What they pass on to others is not listed. Raises InvalidInputError.
        """
        found = self.calls.entries("FindClassified", "classifications", key=key, value=value)
        return [Classification.of(each) for each in found]

    def stale_tables(self) -> list[str]:
        """Return the ids of the tables that are older than they may be (`table(name).set_max_age`)."""
        return [format_id(each["id"]) for each in self.calls.call("ListTableAges", stale=True)["tables"]]

    def events(
        self, types: Names = (), *, of: str | None = None, after: str | None = None, follow: bool = False
    ) -> Iterator[StreamedEvent]:
        """Iterate over the catalog's events that you may see: those that are kept, or behind the one with an id.

        `types` are beginnings (`table`, `table.dropped`), `of` an id: events of that object and of all in it. With
        `follow` it waits for those to come. Raises InvalidInputError, UnsupportedOperationError (none are kept).
        """
        wanted = list_names(types, "types") or []
        object_id = "" if of is None else str(Id(self._resolve(of, "object")))
        return read_events(self.calls, types=wanted, object_id=object_id, after=after, follow=follow)

    def lineage(self, uri: str | os.PathLike[str], *, column: str | None = None, depth: int = DEFAULT_DEPTH) -> Lineage:
        """Return the tables that were made from a file or folder, or from a column of it, up to `depth` steps away.

        `lake.table(name).lineage()` is that of a table. Raises InvalidInputError.
        """
        if not os.fspath(uri):
            raise InvalidInputError("uri is empty: name a file, a folder or a topic.")
        return read_lineage(self, uri=absolute_path(os.fspath(uri)), depth=depth, column=column)

    def rebuild(
        self,
        source: Table | str | os.PathLike[str],
        *,
        since: int | str | datetime | None = None,
        column: str | None = None,
        dry_run: bool = True,
        submit: bool | None = None,
        state: str | os.PathLike[str] | None = None,
        done: Names = (),
    ) -> Rebuild:
        """Return what has to be made again if a table or a file was wrong, in order; without `dry_run` make it.

        `source` is a table, or a file or folder by its path (a text with a slash). `since` is the first version that
        was wrong, by number, tag or time; of a file a time. Of a `column`, what was made from that alone. What takes a
        person is listed with the reason; what comes after it waits until `done` names its table. With the file `state`
        it goes on where it was. Raises InvalidInputError, TableNotFoundError, and as `Rebuild.run` does.
        """
        named = list_names(done, "done") or []
        rebuild = plan_rebuild(self, source, since=since, column=column, state=state, done=named)
        return rebuild if dry_run else rebuild.run(submit=submit, state=state)

    def export_catalog(self, *, within: str = "") -> str:
        """Return a file of YAML that declares all that the caller may see of the catalog, or of a namespace.

        It is described in docs/catalog-as-code.md. Raises NamespaceNotFoundError.
        """
        return export_catalog(self.calls, parse_typed_id(within)).text

    def plan_catalog(self, file: str | os.PathLike[str], *, delete: bool = False) -> CatalogPlan:
        """Return what has to be done for the catalog to be as a file declares it; `apply` of the plan does it.

        With `delete` what the file does not have is taken away. Raises InvalidInputError, with the line where it is
        about one.
        """
        return make_plan(self.calls, read_catalog_file(Path(file), os.environ), deletes=delete)

    def publish(
        self, *, isolation: str = Isolation.SERIALIZABLE, reads: Iterable[str] = ()
    ) -> AbstractContextManager[LakeBlock]:
        """Change several tables at once: what is written in the block becomes visible at its end, or not at all.

        `with lake.publish() as change: change.table("films").write(…)`. By `isolation` "serializable" others must not
        change a table between its first use in the block and the end; by "snapshot" only tables that the block writes
        are compared, and those that `reads` names, from the beginning of the block on. Raises PublishConflictError
        (others changed one of these tables), PublishUncertainError, InvalidInputError, and what is raised in the block.
        """
        return self._publication(isolation, [self.table(name).path for name in reads])

    @contextmanager
    def _publication(self, isolation: str, reads: Sequence[tuple[str, ...]]) -> Iterator[LakeBlock]:
        with open_publication(self.catalog, isolation, reads) as catalog:
            yield LakeBlock(self.location, catalog, self._sessions, is_recorded=False)

    def run_pipeline(
        self,
        plan: str | os.PathLike[str] | Mapping[str, Any],
        values: Mapping[str, str] | None = None,
        *,
        wait: bool = True,
        submit: bool | None = None,
    ) -> Run:
        """Create several tables as a YAML or Python file says, or a mapping of the same form, and publish them at once.

        `values` replace `${NAME}` in a file. The figure `versions` has the version of each table. Raises
        InvalidInputError (with the line of the file), and as `Run.wait` does.
        """
        from tiltyard.pipeline.plans.plan_file import parse_plan, read_plan  # noqa: PLC0415  # an extra: PySpark

        with translate():
            if isinstance(plan, Mapping):
                if values:
                    raise InvalidInputError("values are for a file: a mapping has its values already.")
                parsed = parse_plan(plan)
            else:
                parsed = read_plan(Path(plan), values or {})
        arguments = {"plan": msgspec.json.encode(parsed).decode(), "udf": parsed.functions or None}
        return self.run_job("pipeline", present(**arguments), wait=wait, submit=submit)

    def stream(
        self,
        source: str | os.PathLike[str],
        table: str,
        *,
        on: Names | None = None,
        rejects: str | os.PathLike[str] | None = None,
        available_now: bool = False,
        wait: bool | None = None,
        submit: bool | None = None,
        **options: Any,
    ) -> Run:
        """Append what arrives at a source to a table, or upsert it by a key (`on`), each row exactly once.

        The run goes on until it is canceled, and is returned at once; with `available_now` it ends when all that was
        there is in the table, and is waited for. `options` are those of `tiltyard job stream`: format, drift,
        batch_rows, batch_seconds, name, …. Raises InvalidInputError, and as `Run.wait` does.
        """
        arguments = {
            "source": absolute_path(os.fspath(source)),
            "table": str(Id(self._resolve(table, "table"))),
            "available_now": available_now,
            **present(on=list_names(on, "on"), **options),
            **({} if rejects is None else {"rejects": absolute_path(os.fspath(rejects))}),
        }
        return self.run_job("stream", arguments, wait=available_now if wait is None else wait, submit=submit)

    def __repr__(self) -> str:
        return f"<lake {self.location}>"


class LakeBlock(Lake):
    """A lake within a publication: its tables are read as the block has changed them."""

    table_class = ChangedTable

    def sql(self, query: str) -> NoReturn:  # it is refused
        """Raise InvalidInputError: SQL reads what is published."""
        raise not_published("sql")

    def create_view(self, name: str, sql: str, **_: Any) -> NoReturn:
        """Raise InvalidInputError: a view is created by itself."""
        raise not_published("create_view")

    def stream(self, *_: Any, **__: Any) -> NoReturn:
        """Raise InvalidInputError: a stream commits each batch by itself."""
        raise not_published("stream")

    def run_pipeline(self, *_: Any, **__: Any) -> NoReturn:
        """Raise InvalidInputError: a pipeline publishes by itself."""
        raise not_published("run_pipeline")

    def rebuild(self, *_: Any, **__: Any) -> NoReturn:
        """Raise InvalidInputError: each step of a rebuild commits by itself."""
        raise not_published("rebuild")

    def plan_catalog(self, *_: Any, **__: Any) -> NoReturn:
        """Raise InvalidInputError: each change of a plan is made by itself."""
        raise not_published("plan_catalog")

    def snapshot(self, *_: Any, **__: Any) -> NoReturn:
        """Raise InvalidInputError: a snapshot has published versions."""
        raise not_published("snapshot")

    def schedule(self, *_: Any, **__: Any) -> NoReturn:
        """Raise InvalidInputError: a schedule's jobs run later, by themselves."""
        raise not_published("schedule")

    def training_set(self, *_: Any, **__: Any) -> NoReturn:
        """Raise InvalidInputError: a training set has published versions."""
        raise not_published("training_set")

    def publish(self, *_: Any, **__: Any) -> NoReturn:
        """Raise InvalidInputError: a publication has no other one in it."""
        raise not_published("publish")
