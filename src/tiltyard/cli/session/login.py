"""`tiltyard login | logout | profiles`: servers and their keys, stored for the commands that follow."""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from tiltyard.cli.output.formats import OutputFormat, format_option, print_records
from tiltyard.cli.session.failures import CommandError, ExitStatus, exit_on_failure
from tiltyard.cli.session.profiles import (
    DEFAULT,
    Profile,
    Profiles,
    profiles_path,
    read_profiles,
    write_profiles,
)


@click.command("login", short_help="Store a server and its key for later commands.")
@click.argument("url")
@click.option("--profile", "name", default=DEFAULT, show_default=True, help="The name to store it under.")
@click.option("--no-key", is_flag=True, help="The server needs no key: do not ask for one.")
def login(url: str, name: str, no_key: bool) -> None:
    """Store the server at URL as a profile, which later commands use unless they say otherwise.

    The key is asked for on a terminal; elsewhere it is the variable TILTYARD_KEY, or the first line of standard input.
    It is tried before it is stored, in a file that only its owner can read.

    \b
    Examples:
      tiltyard login http://127.0.0.1:2333 --no-key
      tiltyard login https://lake.example.org --profile work
      tiltyard login https://lake.example.org < key.txt
    """
    from tiltyard.cli.session.target import CatalogTarget, check_url, defer_imports, opened_catalog

    with exit_on_failure():
        address = check_url(url)
        profiles = read_profiles()
        profile = Profile(address, "" if no_key else _ask_key())
        defer_imports()
        with opened_catalog(CatalogTarget(profile.url, profile.key)) as catalog:
            caller = catalog.call("WhoAmI")
        by_name = {**profiles.by_name, name: profile}
        write_profiles(replace(profiles, by_name=by_name, current=name))
        click.echo(f"You are {caller['principal']} on {profile.url}; stored as '{name}' in {profiles_path()}")


@click.command("logout", short_help="Forget a stored server and its key.")
@click.option("--profile", "name", help="The profile to forget; the current one by default.")
def logout(name: str | None) -> None:
    """Remove a profile with its key from the file; the key itself stays valid: tiltyard key revoke ends it.

    \b
    Example:
      tiltyard logout --profile work
    """
    with exit_on_failure():
        profiles = read_profiles()
        removed = name or profiles.current
        if removed not in profiles.by_name:
            raise CommandError(
                f"There is no profile '{removed}'." if removed else "Nothing is stored.", ExitStatus.NOT_FOUND
            )
        remaining = {other: profile for other, profile in profiles.by_name.items() if other != removed}
        current = profiles.current if profiles.current != removed else next(iter(sorted(remaining)), "")
        write_profiles(Profiles(remaining, current))
        click.echo(f"'{removed}' is forgotten" + (f"; '{current}' is used now" if current else ""))


@click.command("profiles", short_help="List stored servers, or choose one.")
@click.argument("name", required=False)
@format_option
def list_profiles(name: str | None, form: OutputFormat) -> None:
    """List the stored profiles, without their keys; with NAME, use that one from now on.

    \b
    Examples:
      tiltyard profiles
      tiltyard profiles work
    """
    with exit_on_failure():
        profiles = read_profiles()
        if name is not None:
            if name not in profiles.by_name:
                raise CommandError(f"There is no profile '{name}'.", ExitStatus.NOT_FOUND)
            write_profiles(replace(profiles, current=name))
            click.echo(f"'{name}' is used now: {profiles.by_name[name].url}")
            return
        records = [
            {"name": each, "url": profile.url, "key": bool(profile.key), "current": each == profiles.current}
            for each, profile in sorted(profiles.by_name.items())
        ]
        print_records(records, ("name", "url", "key", "current"), form)


def _ask_key() -> str:
    """Return the key: asked for without an echo, or read from the variable or the first line of standard input."""
    import os

    if key := os.environ.get("TILTYARD_KEY"):
        return key
    if sys.stdin.isatty():
        return str(
            click.prompt("API key (empty for none)", default="", hide_input=True, show_default=False, err=True)
        ).strip()
    return sys.stdin.readline(1024).strip()
