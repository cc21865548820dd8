"""Settings: flags over variables over the file over defaults."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tiltyard.cli import main
from tiltyard.config import NAMES, ConfigError, load_settings
from tiltyard.model.settings.setting_names import unknown_variables


def test_load_settings_flags_win_over_variables_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tiltyard.toml"
    file.write_text('root = "from-file"\nport = 1\nworkers = 3\n[storage_options]\nregion = "here"\n')
    settings = load_settings({"port": 3, "host": None}, file, {"TILTYARD_PORT": "2", "TILTYARD_WORKERS": "4"})
    assert (settings.root, settings.port, settings.workers, settings.host) == ("from-file", 3, 4, "127.0.0.1")
    assert settings.storage_options == {"region": "here"}


def test_load_settings_reads_structures_from_variables() -> None:
    environ = {"TILTYARD_ALLOWED_ROOTS": '["/a", "/b"]', "TILTYARD_STORAGE_OPTIONS": '{"region": "x"}'}
    settings = load_settings({}, None, environ)
    assert settings.allowed_roots == ("/a", "/b") and settings.storage_options == {"region": "x"}


@pytest.mark.parametrize(("text", "value"), [("auto", "auto"), ("0", 0), ("5000", 5000)])
def test_load_settings_reads_an_automatic_number(text: str, value: int | str) -> None:
    assert load_settings({}, None, {}).vector_cache_bytes == "auto"
    assert load_settings({}, None, {"TILTYARD_VECTOR_CACHE_BYTES": text}).vector_cache_bytes == value


@pytest.mark.parametrize(
    "text",
    [
        "port = 'many'",
        "colour = 'red'",
        "port =",
        "allowed_roots = 3",
        "port = 70000",
        "jobs = -1",
        "workers = 0",
        "log_level = 'loud'",
        "vector_cache_bytes = -1",
        "vector_cache_bytes = 'half'",
        "page_cache_bytes = 'auto'",
    ],
)
def test_load_settings_names_what_is_wrong(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        load_settings({}, file, {})


@pytest.mark.parametrize("name", ["audit_webhook_headers", "spark_client", "spark_conf", "storage", "storage_options"])
@pytest.mark.parametrize("text", ['{"authorization": "Bearer t0p"', '{"a": ["t0p"]}', "t0p"])
def test_load_settings_never_shows_what_may_be_a_secret(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} cannot be like this") as caught:
        load_settings({}, None, {f"TILTYARD_{name.upper()}": text})
    assert "t0p" not in str(caught.value)


def test_load_settings_unknown_key_names_it_the_file_and_the_nearest_name(tmp_path: Path) -> None:
    file = tmp_path / "tiltyard.toml"
    for key, told in (("worker_timout", "Did you mean worker_timeout?"), ("colour", "docs/settings.md")):
        file.write_text(f"port = 1\n{key} = 3\n")
        with pytest.raises(ConfigError) as caught:
            load_settings({}, file, {})
        assert all(text in str(caught.value) for text in (key, str(file), told)), caught.value
    with pytest.raises(ConfigError, match=r"^There is no setting 'portt'\. Did you mean port\?$"):
        load_settings({"portt": 1}, None, {})
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_settings({}, file, {})


@pytest.mark.parametrize(
    "text",
    [
        "[storage.lake]\nuri = 's3://lake'\nregoin = 'x'",
        "[providers.corp]\nissuer = 'i'\naudience = 'a'\njwks_url = 'https://x/'\nleewya = 3",
    ],
)
def test_load_settings_unknown_key_in_a_table_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tiltyard.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"regoin|leewya"):
        load_settings({}, file, {})


def test_unknown_variables_are_told_with_the_nearest_name() -> None:
    environ = {
        **dict.fromkeys(("TILTYARD_ROTO", "TILTYARD_BUILD_TAG", "PATH", "TILTYARD_CONFIG", "TILTYARD_KEY"), "x"),
        **dict.fromkeys(("TILTYARD_MOUNT_UNITY", "TILTYARD_OUR_SECRET", "TILTYARD_PORT"), "1"),
    }
    settings = load_settings({"secret_keys": ["env:TILTYARD_OUR_SECRET"]}, None, {})
    told = unknown_variables(settings, NAMES, environ)
    assert told == [
        "TILTYARD_BUILD_TAG is no setting, and is ignored.",
        "TILTYARD_ROTO is no setting, and is ignored. Did you mean TILTYARD_ROOT?",
    ]


def test_command_warns_of_unknown_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILTYARD_ROTO", "elsewhere")
    done = CliRunner().invoke(main, ["db", "upgrade", "--root", str(tmp_path)])
    assert done.exit_code == 0
    assert done.stderr == "tiltyard: TILTYARD_ROTO is no setting, and is ignored. Did you mean TILTYARD_ROOT?\n"


def test_load_settings_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_settings({}, tmp_path / "none.toml", {})


def test_database_url_is_in_a_local_root_and_needed_for_an_object_store(tmp_path: Path) -> None:
    assert load_settings({"root": str(tmp_path)}, None, {}).database_url == f"sqlite:///{tmp_path}/catalog.db"
    with pytest.raises(ConfigError, match="--db"):
        _ = load_settings({"root": "s3://b/p"}, None, {}).database_url
