"""`tiltyard events`: the events of a catalog on a terminal, how far its sinks have come, and what they did not take."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from tiltyard.cli.access.audit import parse_time
from tiltyard.cli.command_groups import CommandGroup
from tiltyard.cli.database import open_database
from tiltyard.cli.options import DATABASE, confirm, settings_options, yes_option
from tiltyard.cli.output.cells import format_time, printable
from tiltyard.cli.session.failures import ExitStatus, exit_on_failure
from tiltyard.config import Settings
from tiltyard.runtime.process import refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tiltyard.store import Store
    from tiltyard.store.events.outbox import EventRecord, EventStream

FOLLOW_SECONDS = 0.5
PAGE = 500
"""Events, and dead letters, that are read at a time."""


@click.group("events", cls=CommandGroup, short_help="Show events, and manage the sinks that get them.")
def events() -> None:
    """Show the events of a catalog, and manage the sinks that get them. Reads the database directly.

    \b
    Examples:
      tiltyard events follow --root ./data
      tiltyard events sinks --root ./data
      tiltyard events replay lake-bus --since 2h --root ./data
    """


def _filter_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select events."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print each event as a line of JSON: a CloudEvent."),
        click.option("--object", "object_id", default="", help="Only events of the object with this id, or in it."),
        click.option(
            "--type", "types", multiple=True, help="Only events of this type, as table.created, or table; repeatable."
        ),
    ):
        command = option(command)
    return command


@events.command("list", short_help="Show the events that are kept.")
@click.option("--since", help="Only events since this time (2026-05-01T12:00Z), or since 30m, 12h, 7d ago.")
@_filter_options
@settings_options(*DATABASE)
def list_events(settings: Settings, since: str | None, types: tuple[str, ...], object_id: str, as_json: bool) -> None:
    """Show the events that are kept, oldest first.

    \b
    Examples:
      tiltyard events list --since 12h --root ./data
      tiltyard events list --type table.dropped --object library --root ./data
    """
    at = parse_time(since)
    with open_database(settings) as store:
        stream = _stream(store)
        after = stream.lost_until if at is None else store.position_before(at)
        if after is not None:
            _print(_read(store, after), types, object_id, as_json=as_json)


@events.command("follow", short_help="Show events as they happen.")
@click.option("--after", type=click.IntRange(min=0), help="Begin behind the event at this position.")
@_filter_options
@settings_options(*DATABASE)
def follow(settings: Settings, after: int | None, types: tuple[str, ...], object_id: str, as_json: bool) -> None:
    """Show events as they happen, until it is interrupted.

    \b
    Examples:
      tiltyard events follow --root ./data
      tiltyard events follow --type table --json --root ./data
    """
    with suppress(KeyboardInterrupt), open_database(settings) as store:
        position = _stream(store).last_position if after is None else _replay_position(store, after, None)
        while True:
            position = _print(_read(store, position), types, object_id, as_json=as_json) or position
            time.sleep(FOLLOW_SECONDS)


@events.command("sinks", short_help="Show the sinks, and how far each has come.")
@settings_options(*DATABASE)
def sinks(settings: Settings) -> None:
    """Show the sinks: what waits for each, what it did not take, and why.

    \b
    Example:
      tiltyard events sinks --root ./data
    """
    with open_database(settings) as store:
        stream, letters = _stream(store), store.dead_letter_counts()
        for sink in store.list_event_sinks():
            dead, missed = letters.get(sink.name, (0, 0))[0], f", missed {sink.missed}" if sink.missed else ""
            state = f", failing after {sink.attempts} attempts: {sink.error}" if sink.error else ""
            sent = "never" if sink.sent_at is None else format_time(sink.sent_at)
            waiting = stream.last_position - sink.position
            click.echo(
                f"{sink.name}: at {sink.position} of {stream.last_position}, {waiting} waiting, {dead} dead letters"
                f"{missed}, last acknowledged {sent}{state}"
            )


@events.command("replay", short_help="Send events to a sink again.")
@click.argument("sink")
@click.option("--after", type=click.IntRange(min=0), help="Send all events behind this position.")
@click.option("--since", help="Send all events since this time, or since 30m, 12h, 7d ago.")
@settings_options(*DATABASE)
def replay(settings: Settings, sink: str, after: int | None, since: str | None) -> None:
    """Send events to a sink again, with the ids that they had, from a position or a time on.

    A position ahead of the sink's own skips what lies between.

    \b
    Examples:
      tiltyard events replay lake-bus --since 2h --root ./data
      tiltyard events replay lake-bus --after 1200 --root ./data
    """
    if (after is None) == (since is None):
        raise click.UsageError("Say from where: either --after or --since.")
    with open_database(settings) as store:
        stream, position = _stream(store), _replay_position(store, after, parse_time(since))
        if not store.move_event_sink(sink, position):
            _refuse_sink(sink)
    click.echo(f"{sink} gets {stream.last_position - position} events, those behind position {position}.")


@events.command("dead-letters", short_help="Show the events that a sink did not take.")
@click.argument("sink")
@click.option("--json", "as_json", is_flag=True, help="Print each event as it was sent: a line of JSON.")
@settings_options(*DATABASE)
def dead_letters(settings: Settings, sink: str, as_json: bool) -> None:
    """Show the events that a sink did not take, and why: the id, when, and its answer.

    \b
    Example:
      tiltyard events dead-letters lake-bus --root ./data
    """
    with open_database(settings) as store:
        _require_sink(store, sink)
        after = -1
        while letters := store.list_dead_letters(sink, after, PAGE):
            for letter in letters:
                again = ", to be sent again" if letter.is_resent else ""
                line = f"{letter.event_id} position {letter.position} {format_time(letter.failed_at)} {letter.error}"
                click.echo(letter.body if as_json else f"{line}{again}")
            after = letters[-1].position


@events.command("resend", short_help="Send the dead letters of a sink again.")
@click.argument("sink")
@click.argument("event", nargs=-1)
@settings_options(*DATABASE)
def resend(settings: Settings, sink: str, event: tuple[str, ...]) -> None:
    """Send the dead letters of a sink again, all of them or the EVENTs with these ids: a server does, within seconds.

    Those that are not taken stay dead letters.

    \b
    Examples:
      tiltyard events resend lake-bus --root ./data
      tiltyard events resend lake-bus 0c67512d9cea2b610846afcc02d40542 --root ./data
    """
    with open_database(settings) as store:
        _require_sink(store, sink)
        count = store.resend_dead_letters(sink, event)
    click.echo(f"To be sent again: {count} events.")


@events.command("remove", short_help="Forget a sink, or all events.")
@click.argument("sink", required=False)
@click.option("--all", "is_all", is_flag=True, help="Forget all sinks and events, and record no changes any more.")
@yes_option
@settings_options(*DATABASE)
def remove(settings: Settings, sink: str | None, is_all: bool, is_confirmed: bool) -> None:
    """Forget a sink with its dead letters; take it out of the settings first, or a server makes it anew.

    \b
    Examples:
      tiltyard events remove lake-bus --root ./data
      tiltyard events remove --all --yes --root ./data
    """
    if bool(sink) == is_all:
        raise click.UsageError("Name a sink, or say --all.")
    with exit_on_failure():
        confirm("Forget all events and sinks?" if is_all else f"Forget {sink}?", is_confirmed=is_confirmed)
    with open_database(settings) as store:
        if sink is None:
            store.stop_recording()
        elif not store.remove_event_sink(sink):
            _refuse_sink(sink)
    click.echo("Removed.")


def _stream(store: Store) -> EventStream:
    """Return the stream, all events with their positions; end the command where none are recorded."""
    from lance_namespace.errors import UnsupportedOperationError

    from tiltyard.events.stream import current_stream

    try:
        return current_stream(store)
    except UnsupportedOperationError as error:
        refuse(str(error))


def _replay_position(store: Store, after: int | None, since: int | None) -> int:
    """Return the position behind which events are wanted; end the command for one that is not kept."""
    from lance_namespace.errors import InvalidInputError

    from tiltyard.events.stream import replay_position

    try:
        return replay_position(store, after, since)
    except InvalidInputError as error:
        refuse(str(error))


def _require_sink(store: Store, name: str) -> None:
    if store.find_event_sink(name) is None:
        _refuse_sink(name)


def _refuse_sink(name: str) -> None:
    refuse(f"There is no event sink '{name}': tiltyard events sinks lists them.", ExitStatus.NOT_FOUND)


def _read(store: Store, after: int) -> Iterator[EventRecord]:
    while store.has_unnumbered_events() and store.number_events():
        pass
    while page := store.list_events(after, PAGE):
        yield from page
        after = page[-1].position


def _print(records: Iterator[EventRecord], types: tuple[str, ...], object_id: str, *, as_json: bool) -> int | None:
    """Print the events that are wanted; return the position of the last one that was read."""
    from tiltyard.events.cloudevents import encode_event, event_data, subject_of
    from tiltyard.events.filters import EventFilter

    wanted, position = EventFilter(types, object_id), None
    for record in records:
        position = record.position
        if not wanted.matches(record):
            continue
        if as_json:
            click.echo(encode_event(record).decode())
            continue
        details = " ".join(f"{name}={_text(value)}" for name, value in event_data(record).items())
        subject = subject_of(record) or "-"
        line = f"{record.position} {format_time(record.at)} {record.type} {subject} {details}"
        click.echo(printable(line.rstrip()))
    return position


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
