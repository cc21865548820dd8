"""Where commands find their catalog: options, variables, and stored profiles with their keys."""

from __future__ import annotations

import json
import shlex
import stat
from pathlib import Path

import pytest

from tests.cli.conftest import printed, records, refused, run_command, wait_for
from tests.cli.cutting_proxy import CuttingProxy
from tests.services.secured import Secured, secured_server


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> object:
    with secured_server(tmp_path_factory.mktemp("secured")) as secured:
        yield secured


def profiles_file(tmp_path: Path) -> Path:
    return tmp_path / "config" / "tiltyard" / "profiles.json"


def test_login_tries_the_key_and_stores_it_for_its_owner_alone(secured: Secured, tmp_path: Path) -> None:
    assert "key" in refused(run_command("login", secured.url, "--no-key"), 5).lower()
    assert "add" not in refused(run_command("login", secured.url, stdin="tilt_0123456789abcdef_no\n"), 5)
    assert not profiles_file(tmp_path).exists()

    said = printed(run_command("login", secured.url, stdin=f"{secured.keys['administrator']}\n"))
    assert said.startswith("You are administrator on ") and secured.keys["administrator"] not in said
    assert stat.S_IMODE(profiles_file(tmp_path).stat().st_mode) == 0o600
    assert stat.S_IMODE(profiles_file(tmp_path).parent.stat().st_mode) == 0o700
    assert printed(run_command("ls")) == ""

    printed(run_command("login", secured.url, "--profile", "ann", stdin=f"{secured.keys['ann']}\n"))
    listed = records(run_command("profiles", "--format", "jsonl"))
    assert [(each["name"], each["current"]) for each in listed] == [("ann", True), ("default", False)]
    assert not any(key in json.dumps(listed) for key in secured.keys.values())
    printed(run_command("profiles", "default"))
    assert "'ann' is forgotten" in printed(run_command("logout", "--profile", "ann"))
    assert "no profile 'ann'" in refused(run_command("ls", "--profile", "ann"), 2)
    printed(run_command("logout"))
    assert "tiltyard login" in refused(run_command("ls"), 2)


def test_keys_in_a_file_that_others_can_read_are_refused(tmp_path: Path, secured: Secured) -> None:
    printed(run_command("login", secured.url, stdin=f"{secured.keys['ann']}\n"))
    profiles_file(tmp_path).chmod(0o640)
    assert "chmod 600" in refused(run_command("ls"), 7)
    profiles_file(tmp_path).chmod(0o600)
    profiles_file(tmp_path).write_text("{")
    assert "damaged" in refused(run_command("ls"), 7)


def test_options_win_over_variables_and_those_over_profiles(
    tmp_path: Path, secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed(run_command("login", secured.url, stdin=f"{secured.keys['administrator']}\n"))
    monkeypatch.setenv("TILTYARD_SERVER", "http://127.0.0.1:1")
    assert "127.0.0.1:1" in refused(run_command("ls"), 6)
    assert printed(run_command("ls", "--server", secured.url)) == ""  # with the key of the profile for this address
    assert "no catalog" in refused(run_command("ls", "--root", str(tmp_path / "nowhere")), 4)
    assert "leave one out" in refused(run_command("ls", "--root", "x", "--server", secured.url), 2)
    assert "http://" in refused(run_command("ls", "--server", "lake.example.org"), 2)
    monkeypatch.setenv("TILTYARD_KEY", "tilt_0123456789abcdef_no")
    refused(run_command("ls", "--server", secured.url), 5)


def test_administration_goes_to_the_server_of_the_profile(
    tmp_path: Path, secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no catalog" in refused(run_command("whoami"), 4)
    assert "--server" in refused(run_command("whoami", "--key", secured.keys["ann"]), 2)
    printed(run_command("login", secured.url, "--profile", "ann", stdin=f"{secured.keys['ann']}\n"))
    printed(run_command("login", secured.url, stdin=f"{secured.keys['administrator']}\n"))
    assert printed(run_command("whoami")).startswith("principal:  administrator")
    assert printed(run_command("whoami", "--profile", "ann")).startswith("principal:  ann\n")
    assert printed(run_command("whoami", "--server", secured.url, "--key", secured.keys["ann"])).startswith(
        "principal:  ann\n"
    )
    assert printed(run_command("whoami", "--root", str(secured.server.root))).startswith("principal:  operator")
    monkeypatch.setenv("TILTYARD_URL", "http://127.0.0.1:1")
    assert printed(run_command("whoami", "--root", str(secured.server.root))).startswith("principal:  operator")
    assert printed(run_command("whoami", "--url", secured.url)).startswith("principal:  administrator")
    assert "leave one out" in refused(run_command("whoami", "--url", secured.url, "--root", "x"), 2)
    assert "http://" in refused(run_command("whoami", "--url", "lake.example.org"), 2)
    monkeypatch.setenv("TILTYARD_ROOT", str(secured.server.root))
    monkeypatch.delenv("TILTYARD_URL")
    assert printed(run_command("whoami")).startswith("principal:  operator")


def test_keys_and_principals_are_those_of_the_server_of_the_profile(
    tmp_path: Path, secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed(run_command("login", secured.url, "--profile", "ann", stdin=f"{secured.keys['ann']}\n"))
    printed(run_command("login", secured.url, stdin=f"{secured.keys['administrator']}\n"))
    key = run_command("key", "create", "yan", "--expires-days", "2", "--note", "by profile").stdout.strip()
    key_id = key.split("_")[1]
    assert list(tmp_path.glob("tiltyard-data")) == []
    assert printed(run_command("whoami", "--url", secured.url, "--key", key)).startswith("principal:  yan\n")
    wait_for(lambda: "never used" not in printed(run_command("key", "list", "yan")))  # noted behind the answer
    listed = printed(run_command("key", "list", "yan"))
    assert listed == printed(run_command("key", "list", "yan", "--root", str(secured.server.root)))
    assert listed.startswith(key_id) and listed.endswith("yan  by profile\n") and "until 20" in listed
    assert "yan" not in printed(run_command("key", "list", "--profile", "ann"))
    assert "administer" in refused(run_command("key", "create", "zed", "--profile", "ann"), 5)
    newer = run_command("key", "rotate", key_id, "--overlap-hours", "0").stdout.strip()
    wait_for(lambda: run_command("whoami", "--url", secured.url, "--key", key).exit_code == 5)  # noticed in seconds
    assert printed(run_command("key", "revoke", newer.split("_")[1])) == f"{newer.split('_')[1]} is revoked.\n"
    assert "--root" in refused(run_command("key", "revoke", "--all-tokens"), 1)
    assert printed(run_command("principal", "alter", "yan", "--disabled")) == "yan is disabled, no administrator.\n"
    assert "yan  disabled" in printed(run_command("principal", "list"))
    assert "lock you out" in refused(run_command("principal", "alter", "administrator", "--disabled"), 1)


def test_a_key_whose_answer_is_lost_is_not_created_twice(secured: Secured) -> None:
    cutting = CuttingProxy(secured.url, cuts=1, path="/key/create")
    reach = ("--url", cutting.url, "--key", secured.keys["administrator"])
    assert "does not answer" in refused(run_command("key", "create", "late", *reach), 6)
    assert cutting.cut == 1 and printed(run_command("key", "list", "late", *reach)).count("late") == 1


def test_a_principal_named_as_the_operator_can_be_disabled_on_the_database(tmp_path: Path) -> None:
    reach = ("--root", str(tmp_path))
    assert run_command("key", "create", "operator", *reach).exit_code == 0
    said = printed(run_command("principal", "alter", "operator", "--disabled", *reach))
    assert said == "operator is disabled, no administrator.\n"


def test_undrop_goes_to_the_server_of_the_profile_with_ids_as_they_are_listed(
    tmp_path: Path, secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "n.csv").write_text("n\n1\n")
    assert "no catalog" in refused(run_command("undrop"), 4)
    printed(run_command("login", secured.url, "--profile", "ann", stdin=f"{secured.keys['ann']}\n"))
    printed(run_command("login", secured.url, stdin=f"{secured.keys['administrator']}\n"))
    printed(run_command("mkdir", "lost"))
    for name in ("lost.found", 'lost."a.b"'):
        printed(run_command("import", "n.csv", name))
        said = printed(run_command("rm", name, "--yes"))
        words = shlex.split(said.partition("tiltyard ")[2])
        assert name in printed(run_command("undrop")) and name not in printed(run_command("undrop", "--profile", "ann"))
        assert printed(run_command(*words)).startswith(f"{name} is back, at ")
    assert "No dropped table" in refused(run_command("undrop", "lost.found"), 4)
    printed(run_command("rm", "lost.found", "--yes"))
    assert "lost.again is back" in printed(run_command("undrop", "lost.found", "--as", "lost.again"))
    said = printed(run_command("rm", "-r", "lost", "--yes"))
    assert (
        printed(run_command("undrop", "--namespace", "lost", "--url", secured.url)) == "lost is back, with 2 tables\n"
    )
    root = str(secured.server.root)
    assert printed(run_command("undrop", "--root", root)) == printed(run_command("undrop"))
    printed(run_command("rm", "-r", "lost", "--yes"))


@pytest.mark.parametrize(
    "words",
    [
        "whoami",
        "grants",
        "role list",
        "policy list films",
        "mount list",
        "key list",
        "principal list",
        "audit",
        "gc",
        "undrop",
    ],
)
def test_a_mistyped_root_is_refused_and_not_created(tmp_path: Path, words: str) -> None:
    root = tmp_path / "tpyo"
    assert "There is no catalog at" in refused(run_command(*words.split(), "--root", str(root)), 4)
    assert not root.exists()


@pytest.mark.parametrize(
    "words",
    [
        "job list",
        "job show 1",
        "job wait 1",
        "job cancel 1",
        "job resume 1",
        "job errors films letters",
        "job export films out",
        "job index films vector IVF_PQ --untracked",
        "job upsert rows.csv films --on id --submit",
        "view create late --sql SELECT",
        "maintain",
    ],
)
def test_a_job_at_a_mistyped_root_is_refused_and_nothing_is_created(tmp_path: Path, words: str) -> None:
    root = tmp_path / "tpyo"
    said = refused(run_command(*words.split(), "--uri", str(root)), 4)
    assert "There is no catalog at" in said and f"--root {root}" in said
    assert not root.exists()


def test_jobs_go_to_the_server_of_the_profile(
    tmp_path: Path, secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "tiltyard login" in refused(run_command("job", "list"), 2)
    printed(run_command("login", secured.url, "--profile", "ann", stdin=f"{secured.keys['ann']}\n"))
    printed(run_command("login", secured.url, stdin=f"{secured.keys['administrator']}\n"))
    queued = printed(run_command("job", "export", "films", "out", "--submit")).strip()
    assert queued in printed(run_command("job", "list"))
    assert queued in printed(run_command("job", "list", "--uri", secured.url))  # with the profile's key
    assert printed(run_command("job", "list", "--profile", "ann")) == ""
    reach = ("--uri", secured.url, "--property", f"header.X-Api-Key={secured.keys['ann']}")
    assert printed(run_command("job", "list", *reach)) == ""
    assert printed(run_command("job", "list", "--uri", secured.url, "--key", secured.keys["ann"])) == ""
    assert "No table needs a job" in printed(run_command("maintain"))
    assert printed(run_command("job", "cancel", queued)) == f"{queued}: Canceled\n"
    assert "leave one out" in refused(run_command("job", "list", "--uri", secured.url, "--profile", "ann"), 2)
    assert "--key is for a server" in refused(run_command("job", "list", "--uri", str(tmp_path), "--key", "tilt_x"), 2)
    monkeypatch.setenv("TILTYARD_URI", str(secured.server.root))
    assert queued in printed(run_command("job", "list"))
    assert printed(run_command("job", "list", "--profile", "ann")) == ""
    assert "no setting 'colour'" in refused(run_command("job", "list", "--property", "colour=red"), 2)


def test_a_database_that_cannot_be_reached_is_told_with_the_reason(tmp_path: Path) -> None:
    assert "postgresql://" in refused(run_command("db", "upgrade", "--db", "mysql://catalog"), 1)
    said = refused(run_command("db", "upgrade", "--db", "postgresql://catalog:hidden@127.0.0.1:1/tiltyard"), 1)
    assert "Connection refused" in said and "hidden" not in said


def test_a_principal_sees_what_its_grants_allow_and_is_told_what_it_lacks(secured: Secured, tmp_path: Path) -> None:
    file = tmp_path / "numbers.csv"
    file.write_text("n\n1\n")
    administrator, ann = ("--server", secured.url, "--key", secured.keys["administrator"]), (
        "--server", secured.url, "--key", secured.keys["ann"],
    )  # fmt: skip
    printed(run_command("import", str(file), "numbers", *administrator))
    assert printed(run_command("ls", *ann)) == ""
    refused(run_command("head", "numbers", *ann), 4)
    refused(run_command("import", str(file), "other", *ann), 5)
    printed(run_command("rm", "numbers", "--yes", *administrator))
