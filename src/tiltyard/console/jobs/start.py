"""Forms that start a job, made of the parameters that the job itself has, and what their fields let choose from."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, ServiceUnavailableError

from tiltyard.console.access.forms import entered_lines
from tiltyard.console.jobs.job import missing_worker
from tiltyard.console.page import Page, PageRequest, Problem, Redirect
from tiltyard.console.table.schema_tree import read_columns
from tiltyard.console.templates import link
from tiltyard.model.columns.index_types import IndexType
from tiltyard.model.ids import DEFAULT_DELIMITER, parse_id
from tiltyard.runtime.child_process import run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from tiltyard.console.page_calls import PageCalls
    from tiltyard.console.table.schema_tree import Column


DESCRIBE_SECONDS = 120
"""How long it may take to import the modules of all jobs."""
FIELD_PREFIX = "argument."
"""What stands before a parameter's name in its field: whatever a job calls one, it is none of the form's own fields."""


class JobParameter(msgspec.Struct, frozen=True):
    """A parameter of a job; `kind` is text, integer, number, boolean, choice, list or mapping.

    `names` says what of the catalog it names: a table, column, branch or tag (`new …` if there need be none of it),
    columns, an index type; "" for anything else.
    """

    name: str
    kind: str
    help: str
    choices: list[str]
    is_required: bool
    default: Any
    names: str = ""

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
        values = {"forms": forms, "table": page.text("table"), "section": "jobs", "no_worker": missing_worker(page)}
        return Page("job_choice.html", values)
    form = _find(forms, name)
    texts = {parameter.name: parameter.default_text for parameter in form.parameters}
    if page.is_fragment:  # the table was chosen: what else was entered stays
        texts |= _entered(page, form)
    elif "table" in texts:
        texts["table"] = page.text("table")
    return _form_page(page, name, form, texts)


def submit(page: PageRequest) -> Page | Redirect:
    """Queue a job with the form's arguments; show the form again where it cannot be."""
    name = page.text("name")
    form = _find(_forms.read(), name)
    texts = _entered(page, form)
    try:
        arguments = read_arguments(form, texts)
        table = arguments.get("table")
        path = list(parse_id(table)) if isinstance(table, str) else None
        submitted = page.calls.call("SubmitJob", name=name, arguments=arguments, table=path)
    except LanceNamespaceError as error:
        return _form_page(page, name, form, texts, page.explain(error))
    return Redirect(link("job", id=submitted.job.id))


def _find(forms: Mapping[str, JobForm], name: str) -> JobForm:
    if name not in forms:
        raise InvalidInputError(f"There is no job '{name[:40]}': choose one of {', '.join(sorted(forms))}.")
    return forms[name]


def _entered(page: PageRequest, form: JobForm) -> dict[str, str]:
    """Return what was entered for each parameter; of a list each choice, a line each."""
    return {
        parameter.name: "\n".join(page.all_of(parameter.field))
        if parameter.kind == "list"
        else page.text(parameter.field)
        for parameter in form.parameters
    }


def _form_page(
    page: PageRequest, name: str, form: JobForm, texts: Mapping[str, str], problem: Problem | None = None
) -> Page:
    values = {
        "name": name,
        "form": form,
        "texts": texts,
        "choices": read_choices(page.calls, {each.names for each in form.parameters}, texts.get("table", "")),
        "problem": problem,
        "no_worker": missing_worker(page),
        "section": "jobs",
    }
    status = problem.status if problem is not None else 200
    return Page("job_fields.html" if page.is_fragment else "job_form.html", values, status, fragment=page.is_fragment)


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
    return entered_lines(text)


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


MAX_TABLES = 500
"""Tables that a field lists; where there are more, it takes what is entered, too."""
MAX_REFS = 200


@dataclass(frozen=True, slots=True)
class Choices:
    """Values with what is said of each, "" for nothing; `are_all` where no other one may be entered."""

    values: Sequence[tuple[str, str]]
    are_all: bool = True


def read_choices(calls: PageCalls, named: AbstractSet[str], table: str) -> Mapping[str, Choices]:
    """Return what can be chosen of what a form's parameters name; nothing for what its reader cannot list.

    Columns, branches and tags are those of `table`, which may be no table yet.
    """
    choices: dict[str, Choices] = {}
    if named & {"table", "new table"}:
        choices |= _tables(calls)
    if "index type" in named:
        choices["index type"] = Choices([(kind.value, "") for kind in IndexType])
    try:
        id_ = list(parse_id(table)) if table else []
    except InvalidInputError:  # what was entered is no name: sending the form says so
        id_ = []
    if id_ and named & {"column", "new column", "columns"}:
        choices |= _columns(calls, id_)
    for name, operation, field in (("branch", "ListTableBranches", "branches"), ("tag", "ListTableTags", "tags")):
        found = calls.attempt(operation, id=id_, limit=MAX_REFS) if id_ and name in named else None
        if found is not None:
            refs = [(ref, "") for ref in sorted(getattr(found, field))]
            choices[name] = Choices(refs, are_all=not found.page_token)
    return choices


def _tables(calls: PageCalls) -> dict[str, Choices]:
    listed = calls.attempt("ListAllTables", limit=MAX_TABLES, delimiter=DEFAULT_DELIMITER)
    if listed is None:
        return {}
    names = [(name, "") for name in listed.tables]
    return {"table": Choices(names, are_all=not listed.page_token), "new table": Choices(names, are_all=False)}


def _columns(calls: PageCalls, id_: list[str]) -> dict[str, Choices]:
    described = calls.attempt("DescribeTable", id=id_, load_detailed_metadata=True, check_declared=True)
    if described is None or described.schema is None:
        return {}
    columns = read_columns(described.schema)
    paths = list(_described(columns, with_fields=True))
    return {
        "column": Choices(paths),
        "new column": Choices(paths, are_all=False),
        "columns": Choices(list(_described(columns, with_fields=False))),
    }


def _described(columns: Sequence[Column], *, with_fields: bool) -> Iterator[tuple[str, str]]:
    """Yield paths of columns with their types, and what computes them."""
    for column in columns:
        by = f", computed by {column.computed.name}" if column.computed is not None else ""
        yield column.path, f"{column.type}{by}"
        if with_fields and column.type == "struct":
            yield from _described(column.children, with_fields=True)
