"""What has to be made again if a source was wrong: planned in order, run, gone on with; on a server, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from lance_namespace.errors import InvalidInputError, TableNotFoundError

import tiltyard
from tests.services.server import ServerProcess
from tiltyard.calls.caller import Caller
from tiltyard.cli import main
from tiltyard.lake import Rebuild
from tiltyard.lake.lineage import Lineage, LineageEdge, LineageNode
from tiltyard.lake.operations import rebuild as rebuilding
from tiltyard.lake.operations.rebuild_plan import _Planner, order_nodes
from tiltyard.lake.runs import ServerRun
from tiltyard.lake.session import LakeSession


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("rebuild"), environ={"TILTYARD_UDFS": "true"})
    yield server
    server.stop()


@pytest.fixture
def lake(server: ServerProcess) -> tiltyard.Lake:
    return tiltyard.connect(server.url)


@pytest.fixture
def name(request: pytest.FixtureRequest, lake: tiltyard.Lake, tmp_path: Path) -> str:
    """Return the namespace of tables: raw → late (upserted; a column of code) → both, view; raw → both, once."""
    namespace = lake.namespace(request.node.name.removeprefix("test_")[:40]).create()
    raw, late, both = (namespace.table(each) for each in ("raw", "late", "both"))
    raw.ingest(write(tmp_path, "aa", "bb"))
    late.ingest(pa.table({"id": [0], "word": [""]}))

    def letters(word: str) -> int:  # of no module, which Spark's workers would have to find
        return len(word)

    late.add_column("length", letters)
    late.upsert(raw.dataset().uri, on="id", format="lance")
    late.backfill("length")
    both.ingest(late.dataset().uri, format="lance", mode="overwrite", select="id,word,length")
    both.upsert(raw.dataset().uri, on="id", format="lance", null="length")
    query = f'SELECT id, length FROM "{namespace.name}$late"'
    view = {"kind": "select", "source_query": query, "output_schema": ""}
    lake.calls.call("CreateMaterializedView", id=[*namespace.path, "view"], **view)
    refreshed = lake.calls.call("RefreshMaterializedView", id=[*namespace.path, "view"])
    ServerRun(lake.calls, "refresh", refreshed["job_id"]).wait()
    return namespace.name


def write(folder: Path, *words: str) -> Path:
    pq.write_table(pa.table({"id": range(len(words)), "word": words}), folder / "raw.parquet")
    return folder / "raw.parquet"


def shown(plan: Rebuild) -> list[tuple[str, str, str]]:
    return [(step.table.rpartition(".")[2], step.action, step.column) for step in plan.steps]


def test_plan_has_each_table_once_in_order_and_what_takes_a_person(lake: tiltyard.Lake, name: str) -> None:
    versions = {each: lake.table(f"{name}.{each}").version for each in ("late", "both", "view")}
    plan = lake.rebuild(f"{name}.raw")
    assert shown(plan)[:3] == [("late", "repeat", ""), ("late", "backfill", "length"), ("both", "repeat", "")]
    assert sorted(shown(plan)[2:]) == [("both", "repeat", ""), ("both", "repeat", ""), ("view", "refresh", "")]
    assert plan.steps[0].detail.startswith("upsert of ") and set(plan.steps[2].after) == {f"{name}.late", f"{name}.raw"}
    assert {each: lake.table(f"{name}.{each}").version for each in versions} == versions
    assert (plan.is_done, plan.is_truncated, plan.by_hand) == (False, False, [])
    assert "by hand" in repr(plan) and "backfill" in plan._repr_html_()
    by_column = lake.rebuild(f"{name}.late", column="length")
    assert ("view", "refresh", "") in shown(by_column)
    others = list(_Planner(lake, lake.table(f"{name}.raw").lineage("downstream", depth=20), "ann").steps())
    whys = {step.table.rpartition(".")[2]: step.detail for step in others if step.is_by_hand}
    assert "who has to repeat it" in whys["late"] and "was asked for by" in whys["both"]


def test_run_makes_all_again_in_order_and_goes_on_after_a_failure(
    lake: tiltyard.Lake, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.table(f"{name}.raw").ingest(write(tmp_path, "a", "bbb", "cccc"), mode="overwrite")
    state, begun = tmp_path / "state.json", list[str]()
    run_job = LakeSession.run_job

    def count(self: Any, job: str, *arguments: Any, **options: Any) -> Any:
        if job == "backfill" and "backfill" not in begun:
            begun.append(job)
            raise RuntimeError("struck")
        begun.append(job)
        return run_job(self, job, *arguments, **options)

    monkeypatch.setattr(LakeSession, "run_job", count)
    with pytest.raises(RuntimeError, match="struck"):
        lake.rebuild(f"{name}.raw", dry_run=False, state=state)
    assert begun == ["upsert", "backfill"]
    saved = msgspec.json.decode(state.read_bytes())["steps"]
    assert [step["status"] for step in saved][:3] == ["done", "failed", "planned"]
    seen: list[tuple[str, str]] = []
    plan = lake.rebuild(f"{name}.raw", state=state)  # of another process: what is done is not done again
    plan.run(state=state, on_step=lambda step: seen.append((step.action, step.status)))
    assert plan.is_done and begun[2:] == ["backfill", "ingest", "upsert"] and seen[0] == ("backfill", "running")
    assert lake.table(f"{name}.late").to_arrow().sort_by("id")["length"].to_pylist() == [1, 3, 4]
    view = lake.table(f"{name}.view").to_arrow().sort_by("id").to_pylist()
    assert view == [{"id": 0, "length": 1}, {"id": 1, "length": 3}, {"id": 2, "length": 4}]
    assert lake.table(f"{name}.both").to_arrow().sort_by("id")["word"].to_pylist() == ["a", "bbb", "cccc"]
    with pytest.raises(InvalidInputError, match="is the rebuild of"):
        lake.rebuild(f"{name}.late", state=state)
    forged = plan.steps[0]
    forged.status = "planned"
    call = Caller.call
    with monkeypatch.context() as patch:
        patch.setattr(Caller, "call", lambda self, name, **fields: call(self, name, **fields) | {"principal": "ann"})
        with pytest.raises(InvalidInputError, match="asked for by somebody else"):
            plan.run()
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(InvalidInputError, match="is no rebuild"):
        lake.rebuild(f"{name}.late", state=tmp_path / "broken.json")


def test_what_takes_a_person_stops_what_comes_after_it_until_it_is_done(lake: tiltyard.Lake, tmp_path: Path) -> None:
    space = lake.namespace("hands").create()
    raw, copied, after = (space.table(each) for each in ("raw", "copied", "after"))
    file = write(tmp_path, "a")
    raw.ingest(file)
    lake.calls.call("CloneTable", id=[*space.path, "copied"], source_location=raw.dataset().uri)
    after.ingest(copied.dataset().uri, format="lance", mode="overwrite")
    for table, mode in (("made", "create"), ("grown", "append")):
        space.table(table).ingest([{"id": 9, "word": "z"}])
        if mode == "append":
            space.table(table).write(raw.dataset().uri, format="lance")
    space.table("made").drop()
    space.table("made").ingest(raw.dataset().uri, format="lance")
    space.table("columns").ingest(raw.dataset().uri, format="lance", mode="overwrite")
    space.table("columns").add_column("next", "id + 1")
    before = after.version
    plan = lake.rebuild(raw)
    whys = {step.table.removeprefix("hands."): step.detail for step in plan.by_hand}
    assert whys.keys() == {"copied", "made", "grown", "columns"}
    assert "clone" in whys["copied"] and "mode overwrite" in whys["made"] and "once more" in whys["grown"]
    assert "without the computed column next" in whys["columns"]
    plan.run()
    assert after.version == before and not plan.is_done
    with pytest.raises(InvalidInputError, match="Nothing is to be done by hand for 'after'"):
        plan.mark_done("after")
    plan.mark_done("hands.copied")
    plan.run()
    assert after.version == (before or 0) + 1 and len(plan.by_hand) == 3
    ago, later = datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(hours=1)
    assert lake.rebuild(file, since=ago).steps and not lake.rebuild(file, since=later).steps
    assert lake.rebuild(raw, since=1).steps


def test_command_asks_and_runs(lake: tiltyard.Lake, name: str, server: ServerProcess, tmp_path: Path) -> None:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(main, ["rebuild", *arguments, "--server", server.url])

    listed = run(f"{name}.raw", "--format", "json")
    assert listed.exit_code == 0, listed.output
    assert msgspec.json.decode(listed.stdout)[0]["what"] == "repeat"
    asked = run(f"{name}.raw", "--run")
    assert asked.exit_code != 0 and "add --yes" in asked.output
    version = lake.table(f"{name}.late").version or 0
    done = run(f"{name}.raw", "--run", "--yes", "--state", str(tmp_path / "state.json"))
    assert done.exit_code == 0 and "1 of 5: repeat" in done.stderr, done.output
    assert (lake.table(f"{name}.late").version or 0) > version
    assert run(str(tmp_path / "raw.parquet"), "--since", "12").exit_code != 0


def test_bad_sources_and_lineage_that_is_cut_are_refused(
    lake: tiltyard.Lake, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInputError, match="source is empty"):
        lake.rebuild("")
    with pytest.raises(TableNotFoundError):
        lake.rebuild(f"{name}.none")
    with pytest.raises(InvalidInputError, match="since: of a file it is a time with a zone"):
        lake.rebuild("/raw/a.csv", since=3)
    with pytest.raises(InvalidInputError, match="rebuild is no part of a publication"), lake.publish() as change:
        change.rebuild(f"{name}.raw")
    monkeypatch.setattr(rebuilding, "MAX_DEPTH", 1)
    plan = lake.rebuild(f"{name}.raw")
    assert plan.is_truncated
    with pytest.raises(InvalidInputError, match="nothing of it is run"):
        plan.run()


def lineage(*pairs: str) -> Lineage:
    """Return lineage of edges such as `ab`, from a to b; the first node is that of the first edge."""
    nodes = {
        letter: LineageNode("table", letter, number) for number, letter in enumerate(dict.fromkeys("".join(pairs)))
    }
    return Lineage(tuple(nodes.values()), tuple(LineageEdge(nodes[pair[0]], nodes[pair[1]]) for pair in pairs), False)


def test_order_of_diamonds_and_circles() -> None:
    for pairs, expected in (
        (("ab", "ac", "bd", "cd", "de"), "bcde"),
        (("ab", "bc", "ac", "cd", "ad"), "bcd"),
        (("ac", "ab", "bc"), "bc"),
        (("aa", "ab", "bb"), "b"),
        (("ab", "bc", "cb", "cd"), "BCd"),
        (("ab", "ba", "bc"), "Abc"),
        (("ab", "bc", "cb", "ad", "de", "ed", "bf", "df"), "BCDEf"),
    ):
        order = "".join(node.name.upper() if circle else node.name for node, circle in order_nodes(lineage(*pairs)))
        assert sorted(order) == sorted(expected), (pairs, order)
        for pair in pairs:
            if pair[0] != pair[1] and pair[1] in order and pair[0] in order:
                assert order.index(pair[0]) < order.index(pair[1]), (pairs, order)
