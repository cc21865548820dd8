"""`tiltyard support-bundle`: what it has of a server at work, and that no secret and no name is in it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.services.secured import make_keys
from tests.services.server import running_servers
from tests.services.wire import stream
from tiltyard.cli import main
from tiltyard.server.support_bundle import NameMask

SECRETS = ("env-secret-of-storage", "secret-of-webhook")
NAMES = ("orderbook", "missingtable", "annabelle")
SETTINGS = """
audit_lines = "stderr"
audit = "all"
max_vectors = 77
log_format = "json"
storage_options = {secret_access_key = "env-secret-of-storage"}
[audit_webhook_headers]
authorization = "secret-of-webhook"
"""


def make(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["support-bundle", *arguments])
    return result.exit_code, result.output


def contents(file: Path) -> dict[str, str]:
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_bundle_says_what_goes_wrong_and_no_secret_and_no_name(tmp_path: Path) -> None:
    config, root = tmp_path / "tiltyard.toml", tmp_path / "root"
    config.write_text(SETTINGS)
    with running_servers(1, root, "--auth", "--config", str(config)) as (server,):
        keys = make_keys(f"sqlite:///{root / 'catalog.db'}", "administrator", "annabelle")
        with httpx.Client(base_url=server.url, headers={"x-api-key": keys["administrator"]}) as http:
            http.post("/v1/table/orderbook/create", content=stream(pa.table({"n": [1]}))).raise_for_status()
            missing = http.post("/v1/table/missingtable/describe", headers={"x-api-key": keys["annabelle"]})
            assert missing.status_code == 404
            stale = http.post("/tiltyard/v1/table/orderbook/max_age/set", json={"max_age_seconds": 10})
            assert stale.status_code == 200, stale.text
        place = ("--config", str(config), "--root", str(root), "--port", server.url.rpartition(":")[2])
        assert make(str(tmp_path / "hidden.zip"), *place)[0] == 0
        assert make(str(tmp_path / "named.zip"), "--names", *place)[0] == 0
    hidden, named = contents(tmp_path / "hidden.zip"), contents(tmp_path / "named.zip")
    everything = "".join(hidden.values())
    assert [text for text in (*SECRETS, *NAMES, *keys.values(), str(root)) if text in everything] == []
    assert [text for text in (*SECRETS, *keys.values()) if text in "".join(named.values())] == []
    assert all(name in "".join(named.values()) for name in NAMES)
    settings = json.loads(hidden["settings.json"])
    assert {name: value for name, value in settings.items() if name not in ("root", "port", "auth")} == {
        "audit": "all",
        "audit_lines": "(set)",
        "audit_webhook_headers": "(set, 1 entries)",
        "log_format": "json",
        "max_vectors": 77,
        "storage_options": "(set, 1 entries)",
    }
    assert json.loads(hidden["catalog.json"])["rows"]["tables"] == 1
    failed = json.loads(hidden["errors.json"])["requests"]
    assert [(each["operation"], each["status"], each["object"][:7]) for each in failed] == [
        ("DescribeTable", 404, "object ")
    ]
    slow = json.loads(hidden["slow.json"])
    assert {each["operation"] for each in slow} >= {"CreateTable", "DescribeTable"}
    assert [each["milliseconds"] for each in slow] == sorted((each["milliseconds"] for each in slow), reverse=True)
    assert "tiltyard_requests_total" in hidden["metrics.txt"]
    assert 'tiltyard_table_stale{table="table ' in hidden["metrics.txt"]
    assert "pylance" in json.loads(hidden["versions.json"])
    assert "is missing" not in hidden["README.txt"]


def test_what_cannot_be_had_is_said_and_no_file_is_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "bundle.zip"
    status, said = make(str(file), "--root", str(tmp_path / "none"), "--port", "1")
    assert status == 0
    assert "Without catalog.json: there is no catalog yet." in said and "Without metrics.txt: " in said
    assert not (tmp_path / "none").exists()
    assert "catalog.json is missing" in contents(file)["README.txt"]
    assert make(str(file)) == (1, f"tiltyard: {file} is there already: name a new file.\n")
    status, said = make(str(tmp_path / "no" / "bundle.zip"))
    assert status == 1 and "cannot be written: No such file or directory." in said


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Table 'people$ann' does not exist.", "Table '…' does not exist."),
        ("It's the server's: 'it's ann's' is taken.", "It's the server's: '…' is taken."),
        ('Column "age" of /data/x.lance and s3://b/k', "Column '…' of … and …"),
        ("first line\nsecond with ann", "first line"),
        ("a" * 900, "a" * 500),
    ],
)
def test_messages_are_shown_without_what_they_quote(said: str, shown: str) -> None:
    assert NameMask(shown=False).message(said) == shown
    assert NameMask(shown=True).message(said) == said
