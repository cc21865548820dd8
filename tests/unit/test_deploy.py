"""What can be checked of `deploy/` without an engine: its files parse, and name what is there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tiltyard.cli import main
from tiltyard.config import load_settings

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = sorted((DEPLOY / "compose").glob("*.yaml"))


def services(file: Path) -> dict[str, Any]:
    """Return the services of a compose file that run Tiltyard."""
    return {name: each for name, each in yaml.safe_load(file.read_text())["services"].items() if "build" in each}


@pytest.mark.parametrize("file", COMPOSE, ids=lambda file: file.stem)
def test_compose_file_runs_commands_with_settings_that_there_are(file: Path) -> None:
    for name, service in services(file).items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        options = [word for word in service["command"] if not word.startswith("-") and not word.isdigit()]
        assert CliRunner().invoke(main, [*options, "--help"]).exit_code == 0
        variables = {key: value for key, value in service.get("environment", {}).items() if key.startswith("TILTYARD_")}
        load_settings({}, environ={key: re.sub(r"\$\{\w+\}", "x", value) for key, value in variables.items()})
        for flag in (word for word in service["command"] if word.startswith("--")):
            assert flag in CliRunner().invoke(main, [*options, "--help"]).output, (name, flag)
    for service in yaml.safe_load(file.read_text())["services"].values():
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            is_made_by_operators = source.endswith("metrics.key")
            assert not source.startswith(".") or is_made_by_operators or (file.parent / source).exists(), mount


def test_dashboard_asks_for_metrics_that_the_server_has() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "tiltyard.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"tiltyard_\w+", target["expr"])
    }
    page = (DEPLOY.parent / "docs" / "audit.md").read_text()
    assert asked and all(name.removesuffix("_bucket") in page for name in asked), asked


def test_containerfile_and_units_run_what_there_is() -> None:
    container = (DEPLOY / "Containerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", container, re.MULTILINE):
        assert all((DEPLOY.parent / name).exists() for name in line.split()), line
    variables = dict(re.findall(r"(TILTYARD_\w+)=(\S+)", container))
    assert load_settings({}, environ=variables).root == "/data"
    assert re.search(r"^USER 10001", container, re.MULTILINE) and "HEALTHCHECK" in container
    for unit in (DEPLOY / "systemd").glob("*.service"):
        command = re.search(r"^ExecStart=\S+/tiltyard (\w+) (--config) ", unit.read_text(), re.MULTILINE)
        assert command is not None, unit
        assert command[2] in CliRunner().invoke(main, [command[1], "--help"]).output


def test_values_of_the_chart_are_those_that_its_templates_name() -> None:
    chart = DEPLOY / "helm" / "tiltyard"
    values = yaml.safe_load((chart / "values.yaml").read_text())
    for template in (chart / "templates").iterdir():
        for path in re.findall(r"\.Values\.([\w.]+)", template.read_text()):
            value: Any = values
            for name in path.split("."):
                assert name in value, (template.name, path)
                value = value[name]
