"""What can be checked of `deploy/` without an engine: its files parse, and name what is there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from tiltyard.cli import main
from tiltyard.config import load_settings
from tiltyard.server.doctor import PROCESS_BYTES, memory_bounds

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
            source, *target = mount.split(":")
            if not target:  # a volume without a name
                continue
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


def test_bounds_of_memory_of_the_chart_fit_into_its_limits() -> None:
    values = yaml.safe_load((DEPLOY / "helm/tiltyard/values.yaml").read_text())
    environ = {f"TILTYARD_{name.upper()}": value for name, value in values["settings"].items()}
    settings = load_settings({}, environ=environ)
    server, worker = values["server"], values["worker"]
    limit = gibibytes(server["resources"]["limits"]["memory"])
    assert memory_bounds(replace(settings, workers=server["workers"]), limit) <= limit
    assert worker["jobs"] * settings.upkeep_bytes + PROCESS_BYTES <= gibibytes(worker["resources"]["limits"]["memory"])


def gibibytes(text: str) -> int:
    assert text.endswith("Gi")
    return int(text.removesuffix("Gi")) << 30


def test_values_fit_their_schema() -> None:
    chart = DEPLOY / "helm" / "tiltyard"
    values = yaml.safe_load((chart / "values.yaml").read_text())
    schema = json.loads((chart / "values.schema.json").read_text())
    jsonschema.validate(values, schema)
    for wrong in ({"replicas": 3}, {"server": {"auth": "yes"}}, {"settings": {"query_memory_bytes": 1073741824}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(values | wrong, schema)


def test_temporary_files_of_compose_are_on_disk() -> None:
    for file in COMPOSE:
        for name, service in services(file).items():
            assert "/tmp" in service["volumes"] and "tmpfs" not in service, (file, name)


def test_images_of_compose_are_of_one_version() -> None:
    images = [each["image"] for file in COMPOSE for each in yaml.safe_load(file.read_text())["services"].values()]
    assert images and not [image for image in images if image.endswith(":latest")]


@pytest.mark.skipif(shutil.which("helm") is None, reason="Helm is not installed: Debian and PyPI have no package of it")
@pytest.mark.parametrize("all_parts", [False, True])
def test_chart_renders(all_parts: bool) -> None:
    given = [
        "ingress.enabled=true",
        "ingress.host=lake.example.com",
        "ingress.tlsSecretName=certificate",
        "ingress.sql.host=sql.example.com",
        "tolerations[0].key=lake",
        "tls.secretName=certificate",
        "serviceMonitor.enabled=true",
        "serviceMonitor.keySecret=metrics",
        "imagePullSecrets[0].name=registry",
        "nodeSelector.disk=ssd",
    ]
    command = ["helm", "template", "lake", str(DEPLOY / "helm/tiltyard"), "--kube-version", "1.31.0"]
    options = [word for value in given for word in ("--set", value)] if all_parts else []
    run = subprocess.run([*command, *options], check=True, stdout=subprocess.PIPE, text=True)
    objects = [each for each in yaml.safe_load_all(run.stdout) if each]
    kinds = {each["kind"] for each in objects}
    assert {"Deployment", "Service", "Job", "PodDisruptionBudget", "ServiceAccount"} <= kinds
    assert ({"Ingress", "ServiceMonitor"} <= kinds) == all_parts
    assert subprocess.run([*command, "--set", "server.auth=false"], check=False, capture_output=True).returncode != 0
