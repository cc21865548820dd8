"""`tiltyard key …` and `tiltyard principal …`."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from tests.identity.responses import ask, refused, wait_for
from tests.services.forked_process import run_tiltyard
from tests.services.secured import secured_server
from tiltyard.cli import main


def run(root: Path, *arguments: str) -> Result:
    """A command, in this process: each start of another costs seconds."""
    return CliRunner().invoke(main, [*arguments, "--root", str(root)])


def test_key_commands_change_what_a_running_server_accepts(tmp_path: Path) -> None:
    with secured_server(tmp_path) as secured:
        created = run(tmp_path, "key", "create", "zoe", "--expires-days", "2", "--note", "nightly")
        key = created.stdout.strip()
        id_ = key.split("_")[1]
        assert created.exit_code == 0 and key.startswith("tilt_") and key not in created.stderr
        assert ask(secured.url, {"x-api-key": key}).status_code == 200

        output = run(tmp_path, "key", "list", "zoe").stdout
        assert id_ in output and "nightly" in output and key.split("_", 2)[2] not in output

        newer = run(tmp_path, "key", "rotate", id_, "--overlap-hours", "1").stdout.strip()
        for accepted in (key, newer):
            assert ask(secured.url, {"x-api-key": accepted}).status_code == 200

        assert run(tmp_path, "key", "revoke", id_).exit_code == 0
        wait_for(lambda: ask(secured.url, {"x-api-key": key}).status_code == 401)
        assert "revoked" in refused(ask(secured.url, {"x-api-key": key}))
        assert ask(secured.url, {"x-api-key": newer}).status_code == 200

        assert "zoe is disabled" in run(tmp_path, "principal", "alter", "zoe", "--disabled").stdout
        wait_for(lambda: ask(secured.url, {"x-api-key": newer}).status_code == 401)
        assert "zoe  disabled" in run(tmp_path, "principal", "list").stdout


def test_key_create_administrator_recovers_a_catalog_whose_keys_are_lost(tmp_path: Path) -> None:
    created = run_tiltyard("key", "create", "--administrator", "--root", str(tmp_path))
    assert created.returncode == 0 and created.stdout.startswith("tilt_"), created.stderr
    assert run(tmp_path, "principal", "list").stdout.split("  ")[1:] == ["administrator", "administrator\n"]


def test_key_commands_need_the_database_alone(tmp_path: Path) -> None:
    """An operator without the storage's credentials and the mounts' secrets makes keys, and no root is made for it."""
    config = tmp_path / "tiltyard.toml"
    config.write_text(
        f'root = "{tmp_path}/root"\ndb = "sqlite:///{tmp_path}/catalog.db"\n'
        '[mounts.a]\nkind = "unity"\nuri = "https://unity.example.org"\ntoken = "env:TILTYARD_MOUNT_NOT_HERE"\n'
    )
    for arguments in (("key", "create", "ann"), ("key", "list"), ("principal", "alter", "ann", "--disabled")):
        done = CliRunner().invoke(main, [*arguments, "--config", str(config)])
        assert done.exit_code == 0, done.output
    assert not (tmp_path / "root").exists()


def test_key_commands_that_fail_print_one_sentence(tmp_path: Path) -> None:
    assert run(tmp_path, "key", "create", "ann").exit_code == 0
    for arguments, says in (
        (("key", "revoke"), "Name the keys"),
        (("key", "revoke", "none"), "no key none"),
        (("key", "rotate", "none"), "no key none"),
        (("key", "create", "corp:ann"), "provider"),
        (("principal", "alter", "ann"), "Choose what to change"),
    ):
        done = run(tmp_path, *arguments)
        assert done.exit_code == 1 and says in done.stderr and len(done.stderr.splitlines()) == 1
