"""`tiltyard functions`: the ready-made functions that columns are computed by."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.output.formats import OutputFormat, format_option, print_record, print_records
from tiltyard.cli.session.failures import CommandError, ExitStatus, exit_on_failure

if TYPE_CHECKING:
    from tiltyard.functions import ReadyMade

_COLUMNS = ("name", "version", "digest", "takes", "arguments", "result", "needs")
_SHOWN_DIGITS = 12


@click.command("functions", short_help="List the ready-made functions of columns.")
@click.argument("name", required=False)
@format_option
def functions(name: str | None, form: OutputFormat) -> None:
    """List the ready-made functions, which compute columns of text and images; with NAME, all about one.

    The digest is of what decides the values: name, version, arguments. `needs` has packages that are to be installed
    where functions run; those that are missing here are marked.

    \b
    Examples:
      tiltyard functions
      tiltyard functions chunk_words --format json
      tiltyard job backfill films language --udf detect_language --inputs description
    """
    from tiltyard.functions import list_functions

    found = {each.name: each for each in list_functions()}
    with exit_on_failure():
        if name is None:
            print_records(map(_summary, found.values()), _COLUMNS, form, numbers=("version",))
        elif name in found:
            print_record(_details(found[name]), form)
        else:
            raise CommandError(
                f"There is no ready-made function '{name}': there are {', '.join(found)}.", ExitStatus.NOT_FOUND
            )


def _summary(function: ReadyMade) -> dict[str, Any]:
    return {
        "name": function.name,
        "version": function.version,
        "digest": function.digest[:_SHOWN_DIGITS],
        "takes": str(function.takes),
        "arguments": ", ".join(map(str, function.specs)),
        "result": function.result_text,
        "needs": ", ".join(
            f"{need} (missing)" if need in function.missing_packages else need for need in function.needs
        ),
    }


def _details(function: ReadyMade) -> dict[str, Any]:
    from tiltyard.functions.model_files import known_models

    details = {**_summary(function), "digest": function.digest, "about": inspect.cleandoc(function.__doc__)}
    if any(spec.name in ("model", "tokenizer") for spec in function.specs):
        models = [model if is_here else f"{model} (missing)" for model, is_here in known_models()]
        details["models"] = ", ".join([*models, "the absolute path of a folder"])
    return details
