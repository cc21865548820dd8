"""Forms that start a job, made of the parameters that the job itself has."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError

from tiltyard.console.page import Page, PageRequest, Redirect
from tiltyard.console.templates import link
from tiltyard.model.ids import DEFAULT_DELIMITER, parse_id
from tiltyard.runtime.child_process import run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DESCRIBE_SECONDS = 120
"""How long it may take to import the modules of all jobs."""
FIELD_PREFIX = "argument."
"""What stands before a parameter's name in its field: whatever a job calls one, it is none of the form's own fields."""


class JobParameter(msgspec.Struct, frozen=True):
    """A parameter of a job; `kind` is text, integer, number, boolean, choice, list or mapping."""

    name: str
    kind: str
    help: str
    choices: list[str]
    is_required: bool
    default: Any

    @property
    def field(self) -> str:
        """The name of its field in a form."""
        return f"{FIELD_PREFIX}{self.name}"

    @property
    def default_text(self) -> str:
        """The default as a form has it."""
        if isinstance(self.default, list):
            return "\n".join(self.default)
        if isinstance(self.default, dict):
            return "\n".join(f"{name}={value}" for name, value in self.default.items())
        return "" if self.default is None else str(self.default)


class JobForm(msgspec.Struct, frozen=True):
    """What a job does, and its parameters in their order."""

    help: str
    parameters: list[JobParameter]


class JobForms:
    """The forms of all installed jobs, read once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forms: Mapping[str, JobForm] | None = None

    def read(self) -> Mapping[str, JobForm]:
        """Return the forms by the names of their jobs. Raises ServiceUnavailableError where jobs cannot be imported."""
        with self._lock:
            if self._forms is None:
                command = [sys.executable, "-m", "tiltyard.pipeline.job_parameters"]
                try:
                    done = run_command(command, DESCRIBE_SECONDS, check=True)
                    self._forms = msgspec.json.decode(done.stdout, type=dict[str, JobForm])
                except (OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
                    raise ServiceUnavailableError(
                        "The jobs of the pipeline are not installed with this server: pip install 'tiltyard[spark]', "
                        "or start jobs by `tiltyard job` where they are."
                    ) from error
            return self._forms


_forms = JobForms()


def show(page: PageRequest) -> Page:
    """Show the jobs that there are, or the form of one of them. Raises InvalidInputError."""
    forms = _forms.read()
    name = page.text("name")
    if not name:
        return Page("job_choice.html", {"forms": forms, "table": page.text("table"), "section": "jobs"})
    form = _find(forms, name)
    values = {parameter.name: parameter.default_text for parameter in form.parameters}
    values |= {"table": page.text("table")} if "table" in values else {}
    return _form_page(name, form, values, "")


def submit(page: PageRequest) -> Page | Redirect:
    """Queue a job with the form's arguments; show the form again where they are none of its own."""
    name = page.text("name")
    form = _find(_forms.read(), name)
    texts = {parameter.name: page.text(parameter.field) for parameter in form.parameters}
    try:
        arguments = read_arguments(form, texts)
        table = arguments.get("table")
        path = list(parse_id(table, DEFAULT_DELIMITER)) if isinstance(table, str) else None
        submitted = page.calls.call("SubmitJob", name=name, arguments=arguments, table=path)
    except InvalidInputError as error:
        return _form_page(name, form, texts, str(error), 400)
    return Redirect(link("job", id=submitted.job.id))


def _find(forms: Mapping[str, JobForm], name: str) -> JobForm:
    if name not in forms:
        raise InvalidInputError(f"There is no job '{name[:40]}': choose one of {', '.join(sorted(forms))}.")
    return forms[name]


def _form_page(name: str, form: JobForm, texts: Mapping[str, str], problem: str, status: int = 200) -> Page:
    values = {"name": name, "form": form, "texts": texts, "problem": problem, "section": "jobs"}
    return Page("job_form.html", values, status)


def read_arguments(form: JobForm, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments that a form's texts stand for; those left empty have their default.

    Raises InvalidInputError for one that is missing, or not of its parameter's kind.
    """
    arguments = {}
    for parameter in form.parameters:
        text = texts.get(parameter.name, "")
        if parameter.kind == "boolean":
            arguments[parameter.name] = text != ""
        elif text:
            arguments[parameter.name] = _READERS[parameter.kind](parameter, text)
        elif parameter.is_required:
            raise InvalidInputError(f"{parameter.name} is missing: {parameter.help}")
    return arguments


def _read_number(parameter: JobParameter, text: str) -> int | float:
    try:
        return int(text) if parameter.kind == "integer" else float(text)
    except ValueError:
        kind = "a whole number" if parameter.kind == "integer" else "a number"
        raise InvalidInputError(f"{parameter.name} is {kind}, not '{text[:40]}'.") from None


def _read_choice(parameter: JobParameter, text: str) -> str:
    if text not in parameter.choices:
        raise InvalidInputError(f"{parameter.name} is one of {', '.join(parameter.choices)}, not '{text[:40]}'.")
    return text


def _read_lines(_: JobParameter, text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _read_pairs(parameter: JobParameter, text: str) -> dict[str, str]:
    pairs = {}
    for line in _read_lines(parameter, text):
        name, equals, value = line.partition("=")
        if not equals:
            raise InvalidInputError(f"{parameter.name} has one NAME=VALUE a line, not '{line[:40]}'.")
        pairs[name.strip()] = value.strip()
    return pairs


_READERS: Mapping[str, Callable[[JobParameter, str], Any]] = {
    "text": lambda _, text: text,
    "integer": _read_number,
    "number": _read_number,
    "choice": _read_choice,
    "list": _read_lines,
    "mapping": _read_pairs,
}
