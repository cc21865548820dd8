"""`tiltyard events` on a catalog: what is listed and followed, and positions that are not kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tiltyard.cli import events as commands
from tiltyard.cli import main
from tiltyard.store import open_store


def test_events_are_listed_as_receivers_get_them_and_followed_from_a_position_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(f"sqlite:///{tmp_path}/catalog.db") as store:
        store.start_recording([])
        for name in ("a", "b", "c"):
            store.create_namespace((name,), {})
        namespace = store.create_namespace(("a", "d"), {})
        store.grant("principal:ann", "namespace", namespace.id, 3, "root")
        store.drop_namespace(("b",))
        assert (store.number_events(), store.sweep_events(0, 5, 100)) == (6, 1)

    def run(*arguments: str) -> tuple[int, list[str]]:
        result = CliRunner().invoke(main, ["events", *arguments, "--root", str(tmp_path)])
        return result.exit_code, [line.split(" ", 3)[-1] for line in result.output.splitlines()]

    listed = ["namespace.created b", "namespace.created c", "namespace.created a$d"]
    granted = 'grant.changed a$d grantee=principal:ann privileges=["use","read"] changed_by=root'
    dropped = "namespace.dropped b restorable=false"
    assert run("list") == (0, [*listed, granted, dropped])
    assert run("list", "--type", "grant", "--object", "a") == (0, [granted])
    assert run("list", "--type", "io.tiltyard.namespace.dropped.v1") == (0, [dropped])

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands.time, "sleep", interrupt)
    assert run("follow", "--after", "5") == (0, [dropped])
    for position in ("0", "7"):
        status, output = run("follow", "--after", position)
        assert (status, "from position 1 to 6" in " ".join(output)) == (1, True)
