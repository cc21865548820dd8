"""Settings of a mount are checked before anything is sent, and its secrets are shown nowhere."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard import mounts
from tiltyard.model.ids import Id
from tiltyard.mounts import open_catalog
from tiltyard.mounts.backends.directory import DirectorySettings
from tiltyard.mounts.call_deadline import CallDeadline
from tiltyard.mounts.mount_settings import parse_settings


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("unknown", {}, "no kind of mount 'unknown'"),
        ("dir", {"root": "/x", "rooot": "/x"}, "no setting 'rooot'"),
        ("dir", {}, "root"),
        ("dir", {"root": "relative"}, "relative"),
        ("dir", {"root": "/x", "mode": "all"}, "not valid"),
        ("dir", {"root": "/x", "timeout": 0}, "timeout is 0"),
        ("dir", {"root": "/x", "timeout": "soon"}, "not valid"),
        ("dir", {"root": "/x", "credentials": {"aws_secret_access_key": "hunter2"}}, "plain text"),
        ("hive", {"uri": "http://host"}, "thrift://host:port"),
        ("hive", {"uri": "thrift://host,thrift://"}, "thrift://host:port"),
        ("hive", {"uri": "thrift://host", "connections": 0}, "connections is 0"),
        ("hive", {"uri": "thrift://host", "root": "lake"}, "relative"),
        ("glue", {"region": "us-east-1", "endpoint": "no url"}, "cannot be used"),
        ("dir", {"root": "/x", "credentials": {"aws_secret_access_key": "env:TILTYARD_NO_SUCH"}}, "TILTYARD_NO_SUCH"),
    ],
)
def test_settings_that_are_not_valid_are_refused_in_a_sentence(
    kind: str, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        open_catalog(kind, settings)
    assert "hunter2" not in str(caught.value)


def test_secrets_are_read_from_variables_and_files_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILTYARD_TEST_SECRET", "hunter2")
    (tmp_path / "key").write_text("hunter3\n")
    settings = parse_settings(
        DirectorySettings,
        {"root": "/x", "credentials": {"a": "env:TILTYARD_TEST_SECRET", "b": f"file:{tmp_path}/key"}},
    )
    assert settings.credentials == {"a": "hunter2", "b": "hunter3"}
    assert "hunter" not in repr(settings)


def test_a_kind_of_another_package_is_opened_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [
        EntryPoint("theirs", "tiltyard.mounts.backends.directory:DirectoryCatalog", mounts.ENTRY_POINTS),
        EntryPoint("dir", "no.such:Catalog", mounts.ENTRY_POINTS),
        EntryPoint("broken", "no.such:Catalog", mounts.ENTRY_POINTS),
    ]
    monkeypatch.setattr(mounts, "entry_points", lambda group: [entry for entry in entries if entry.group == group])
    for kind in ("theirs", "dir"):
        assert open_catalog(kind, {"root": str(tmp_path)}).list_tables(Id()).names == ()
    with pytest.raises(InvalidInputError, match="needs more packages"):
        open_catalog("broken", {})


def test_a_call_deadline_passes_results_and_errors_on() -> None:
    deadline = CallDeadline("The test", 5, threads=1)
    assert deadline.run(int, "7") == 7
    with pytest.raises(ValueError, match="invalid literal"):
        deadline.run(int, "x")

    def time_out() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        deadline.run(time_out)
    deadline.close()
