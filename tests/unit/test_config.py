"""Settings: flags over variables over the file over defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiltyard.config import ConfigError, load_settings


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


def test_load_settings_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_settings({}, tmp_path / "none.toml", {})


def test_database_url_is_in_a_local_root_and_needed_for_an_object_store(tmp_path: Path) -> None:
    assert load_settings({"root": str(tmp_path)}, None, {}).database_url == f"sqlite:///{tmp_path}/catalog.db"
    with pytest.raises(ConfigError, match="--db"):
        _ = load_settings({"root": "s3://b/p"}, None, {}).database_url
