"""Judge what a loss of power left: all that was acknowledged is there and readable, the last write whole or not."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner

from tests.power.histories import CallFailedError, Content, Outcome, Part, World, arrow
from tests.power.installation import Database, Installation
from tests.services.server import ServerProcess
from tests.services.wire import Wire
from tiltyard.cli import main

NEW_ROW = {1_000_000: 1}
EVERYTHING = {"k": 1 << 30, "vector": None, "columns": {"column_names": ["id", "x"]}}


@dataclass(frozen=True, slots=True)
class Complaint:
    """Something that is not as it was acknowledged, and the kind of the write that it came from."""

    kind: str
    text: str


@dataclass(slots=True)
class Verdict:
    """How many acknowledged parts were checked, by the kind of the last write to each, and what is wrong."""

    checked: dict[str, int] = field(default_factory=dict)
    complaints: list[Complaint] = field(default_factory=list)


class Judge:
    """Compares a started server with the outcome of a history."""

    def __init__(self, installation: Installation, server: ServerProcess, outcome: Outcome) -> None:
        self._installation, self._server, self._outcome = installation, server, outcome
        self._wire = Wire(server.url)
        self.verdict = Verdict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._wire.http.close()

    def judge(self, *, with_backup: bool) -> Verdict:
        """Look at each part; then write to each table, and take a backup."""
        if self._installation.database is Database.SQLITE:
            self._check_sqlite()
        seen = {part: self._look(part) for part in {**self._outcome.catalog, **self._outcome.unsure}}
        self._compare(seen)
        self._check_whole(seen)
        self._check_lists(seen)
        for table, content in [(part[1], content) for part, content in seen.items() if part[0] == "table"]:
            if isinstance(content, dict):
                self._try(table, "cannot be written", lambda table=table, rows=content: self._write(table, rows))
        if with_backup:
            self._try("", "a backup fails", self._back_up)
        return self.verdict

    def _complain(self, kind: str, text: str) -> None:
        self.verdict.complaints.append(Complaint(kind, text))

    def _try(self, table: str, what: str, call: Callable[[], object]) -> None:
        kind = self._outcome.by.get(("table", table), self._outcome.unsure_kind)
        try:
            call()
        except Exception as error:  # noqa: BLE001  # whatever it is, it is a complaint
            self._complain(kind, f"{table} {what}: {str(error)[:400]}")

    def _check_sqlite(self) -> None:
        with closing(sqlite3.connect(self._installation.root / "catalog.db")) as connection:
            [(answer,)] = connection.execute("PRAGMA integrity_check").fetchall()
        if answer != "ok":
            self._complain("catalog", f"integrity_check: {answer}")

    def _look(self, part: Part) -> Content:
        """Return a part's content, None if it is not there; a text if that cannot be told."""
        try:
            return LOOKS[part[0]](self, *part[1:])
        except Exception as error:  # noqa: BLE001  # whatever it is, it is a complaint
            return f"{type(error).__name__}: {str(error)[:400]}"

    def _compare(self, seen: dict[Part, Content]) -> None:
        outcome = self._outcome
        for part, content in seen.items():
            kind = outcome.by.get(part, outcome.unsure_kind)
            self.verdict.checked[kind] = self.verdict.checked.get(kind, 0) + (part in outcome.catalog)
            allowed = [outcome.catalog.get(part)]
            allowed += [changes[part] for changes in (outcome.unsure, outcome.between) if part in changes]
            if content not in allowed:
                self._complain(kind, f"{' '.join(part)}: {_difference(content, allowed)}")

    def _check_whole(self, seen: dict[Part, Content]) -> None:
        """Check that of the last write all is there, or nothing."""
        outcome = self._outcome
        changed = [part for part, content in outcome.unsure.items() if content != outcome.catalog.get(part)]
        done = [part for part in changed if seen[part] == outcome.unsure[part]]
        undone = [part for part in changed if seen[part] == outcome.catalog.get(part)]
        if done and undone:
            self._complain(outcome.unsure_kind, f"half there: {done}, not {undone}")

    def _check_lists(self, seen: dict[Part, Content]) -> None:
        tables = {part[1] for part, content in seen.items() if part[0] == "table" and content is not None}
        listed = set(self._wire.pages("/v1/table", "tables", None))
        for name in listed ^ tables:
            self._complain(
                self._outcome.by.get(("table", name), self._outcome.unsure_kind), f"{name}: only one list has it"
            )
        for name in listed & tables:
            for action in ("tags/list", "branches/list", "version/list", "index/list"):
                self._try(name, f"{action} fails", lambda name=name, action=action: self._post(name, action))
        self._try("", "snapshots cannot be listed", lambda: self._path("snapshot/list"))

    def _post(self, table: str, action: str, body: Any = None) -> Any:
        return World.check(self._wire.table([table], action, body))

    def _path(self, path: str, **body: Any) -> Any:
        return World.check(self._wire.http.post(f"/tiltyard/v1/{path}", json=body))

    def _rows(self, table: str, **fields: Any) -> dict[int, int]:
        response = self._wire.table([table], "query", {**EVERYTHING, **fields})
        if response.status_code != 200:
            raise CallFailedError(f"query: {response.status_code} {response.text[:300]}")
        rows = pa.ipc.open_file(response.content).read_all()
        content = dict(zip(rows["id"].to_pylist(), rows["x"].to_pylist(), strict=True))
        assert len(content) == rows.num_rows, f"{rows.num_rows - len(content)} rows are there twice"
        return content

    def _look_at_table(self, name: str) -> Content:
        return self._rows(name) if self._exists("table", name) else None

    def _exists(self, kind: str, name: str) -> bool:
        response = self._wire.call(kind, [name], "exists")
        if response.status_code == 404:
            return False
        assert response.status_code in {200, 204}, response.text
        return True

    def _look_at_tag(self, table: str, name: str) -> Content:
        if not self._exists("table", table) or name not in self._post(table, "tags/list")["tags"]:
            return None
        return self._rows(table, version=self._post(table, "tags/version", {"tag": name})["version"])

    def _look_at_branch(self, table: str, name: str) -> Content:
        if not self._exists("table", table) or name not in self._post(table, "branches/list")["branches"]:
            return None
        return self._rows(table, branch=name)

    def _look_at_index(self, table: str, name: str) -> Content:
        if not self._exists("table", table):
            return None
        names = [index["index_name"] for index in self._post(table, "index/list")["indexes"]]
        if name in names:
            self._post(table, f"index/{name}/stats")
            ids = sorted(self._rows(table))
            assert not ids or len(self._rows(table, filter=f"id = {ids[0]}")) == 1, "the index does not find a row"
        return True if name in names else None

    def _look_at_snapshot(self, name: str) -> Content:
        if name not in [each["name"] for each in self._path("snapshot/list")["snapshots"]]:
            return None
        tables = self._path("snapshot/describe", name=name)["snapshot"]["tables"]
        return {table["id"][0]: self._rows(table["id"][0], version=table["version"]) for table in tables}

    def _look_at_dropped(self, name: str) -> Content:
        dropped = [each["id"] for each in self._path("table/dropped")["tables"]]
        if [name] not in dropped:
            return None
        self._path(f"table/{name}/undrop")
        rows = self._rows(name)
        self._post(name, "drop")
        return rows

    def _look_at_grant(self, table: str, who: str) -> Content:
        if not self._exists("table", table):
            return None
        grants = self._path("grant/list", object_kind="table", id=[table])["grants"]
        return True if who in [each["grantee"] for each in grants] else None

    def _look_at_namespace(self, name: str) -> Content:
        return True if self._exists("namespace", name) else None

    def _look_at_backup(self, name: str) -> Content:
        target = str(self._installation.disk.folder / name)
        points = [line.split()[0] for line in _run("backup", "list", target).splitlines() if " tables " in line]
        for point in points:
            _run("backup", "verify", target, "--id", point)
        return len(points) or None

    def _look_at_export(self, name: str) -> Content:
        path = self._installation.disk.folder / name
        if not path.exists():
            return None
        rows = pq.read_table(path)
        return dict(zip(rows["id"].to_pylist(), rows["x"].to_pylist(), strict=True))

    def _write(self, table: str, rows: dict[int, int]) -> None:
        self._post(table, "insert", arrow(NEW_ROW))
        assert self._rows(table) == rows | NEW_ROW, "the row that was just inserted is not all that is new"
        self._post(
            table,
            "tags/create",
            {"tag": "judged", "version": self._post(table, "describe", {"load_detailed_metadata": True})["version"]},
        )

    def _back_up(self) -> None:
        """Take a backup into a new target, and into each that was begun: what is left there may be damaged."""
        for name in (
            "judged",
            *{part[1] for part in {**self._outcome.by, **self._outcome.unsure} if part[0] == "backup"},
        ):
            target = str(self._installation.disk.folder / name)
            _run("backup", "create", target, *self._installation.catalog_flags)
            _run("backup", "verify", target)


def _run(*arguments: str) -> str:
    """Run a command of `tiltyard` in this process; return what it prints. Raises CallFailedError."""
    done = CliRunner().invoke(main, arguments)
    if done.exit_code:
        raise CallFailedError(f"{arguments}: {done.output} {done.exception}")
    return done.output


def _difference(content: Content, allowed: list[Content]) -> str:
    """Say what differs, in short."""
    if isinstance(content, str):
        return content
    expected = allowed[0]
    if isinstance(content, dict) and isinstance(expected, dict):
        lost, foreign = expected.items() - content.items(), content.items() - expected.items()
        return f"of {len(expected)} rows {len(lost)} are lost, and {len(foreign)} there that were not acknowledged"
    return f"{_short(content)} instead of {' or '.join(map(_short, allowed))}"


def _short(content: Content) -> str:
    return "nothing" if content is None else f"{len(content)} rows" if isinstance(content, dict) else str(content)


LOOKS: dict[str, Callable[..., Content]] = {
    kind: getattr(Judge, f"_look_at_{kind}")
    for kind in ("table", "tag", "branch", "index", "snapshot", "dropped", "grant", "namespace", "backup", "export")
}
