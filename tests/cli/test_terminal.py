"""Commands on a terminal, in pipes, and interrupted: as processes of their own."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from tests.services.server import ServerProcess
from tiltyard.calls.http_caller import HttpCaller

COMMAND = (sys.executable, "-m", "tiltyard")
ESCAPE = "\x1b"


@pytest.fixture(scope="module")
def hostile(server: ServerProcess) -> ServerProcess:
    """A server whose table `hostile` has values that a terminal would obey."""
    catalog = HttpCaller(server.url)
    rows = pa.table({"text": ["\x1b]0;owned\x07\x1b[2J", "\u202eabc", "line\nbreak", "x" * 500]})
    catalog.write("CreateTable", rows.to_reader(), "hostile", id=["hostile"])
    catalog.close()
    return server


def environment(server: ServerProcess, **further: str) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if name != "NO_COLOR"}
    return {**kept, "TILTYARD_SERVER": server.url, "TERM": "xterm-256color", "COLUMNS": "100", **further}


def on_terminal(
    arguments: tuple[str, ...], environ: Mapping[str, str], answers: str = "", command: tuple[str, ...] = COMMAND
) -> tuple[int, str]:
    """Run a command on a pseudo-terminal; return its status and all that the terminal was sent."""
    process_id, terminal = pty.fork()
    if not process_id:
        os.execve(command[0], [*command, *arguments], dict(environ))
    output, deadline, typed = b"", time.monotonic() + 120, not answers
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                data = os.read(terminal, 65536)
            except OSError:
                break
            if not data:
                break
            output += data
        if not typed and (b"]: " in output or b"): " in output):
            os.write(terminal, answers.encode())
            typed = True
    _, status = os.waitpid(process_id, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), output.decode()


def test_table_on_a_terminal_has_colours_and_sends_no_value_that_it_would_obey(hostile: ServerProcess) -> None:
    status, output = on_terminal(("head", "hostile"), environment(hostile))
    assert status == 0 and f"{ESCAPE}[1m" in output  # the header is bold
    assert f"{ESCAPE}]0;" not in output and f"{ESCAPE}[2J" not in output and "\x07" not in output
    assert "\\x1b]0;owned" in output and "\\u202eabc" in output and "line\\nbreak" in output
    assert "x" * 101 not in output


def test_head_of_a_wide_table_shows_the_columns_that_fit_and_names_the_others(server: ServerProcess) -> None:
    catalog = HttpCaller(server.url)
    columns = {f"column_{number}": [f"value {number}", "x" * 59] for number in range(40)}
    catalog.write("CreateTable", pa.table(columns).to_reader(), "wide", id=["wide"])
    catalog.close()
    _, output = on_terminal(("head", "wide"), environment(server, NO_COLOR="1"))
    lines = re.sub(rf"{ESCAPE}\[\d*m", "", output).splitlines()
    header, first, second, more = lines
    assert header.split() == [f"column_{number}" for number in range(5)]
    assert first.split() == [word for number in range(5) for word in ("value", str(number))]
    assert all(cell.startswith("xxx") and cell.endswith("…") for cell in second.split())
    assert "… 35 more columns: column_5, column_6" in more
    assert max(map(len, lines)) <= 100
    status, output = on_terminal(("head", "wide"), environment(server, COLUMNS="24", NO_COLOR="1"))
    assert status == 0 and "39 more" in output


def test_values_into_a_pipe_are_whole(hostile: ServerProcess) -> None:
    catalog = HttpCaller(hostile.url)
    vectors = pa.array([[number / 7 for number in range(50)]], pa.list_(pa.float32()))
    rows = pa.table({"number": [1234567.891], "small": pa.array([0.1], pa.float32()), "v": vectors})
    catalog.write("CreateTable", rows.to_reader(), "numbers", id=["numbers"])
    catalog.close()

    def piped(*arguments: str) -> str:
        command = [*COMMAND, *arguments]
        return subprocess.run(command, env=environment(hostile), capture_output=True, text=True, check=True).stdout

    assert "x" * 500 in piped("head", "hostile")
    line = piped("head", "numbers")
    assert "1234567.891" in line and " 0.1 " in line and "…" not in line and line.count(",") == 49


def test_no_colour_into_a_pipe_nor_with_no_color(hostile: ServerProcess) -> None:
    piped = subprocess.run(
        [*COMMAND, "head", "hostile"], env=environment(hostile), capture_output=True, text=True, check=True
    )
    assert ESCAPE not in piped.stdout
    _, output = on_terminal(("head", "films", "--columns", "id"), environment(hostile, NO_COLOR="1"))
    assert f"{ESCAPE}[3" not in output and "id" in output


def test_update_asks_on_a_terminal_with_the_number_of_rows(hostile: ServerProcess) -> None:
    command = ("update", "hostile", "--set", "text = upper(text)", "--where", "text IS NOT NULL")
    status, output = on_terminal(command, environment(hostile), "n\n")
    assert status == 1 and "4 rows of hostile with text IS NOT NULL get text = upper(text). Go on?" in output
    assert "Nothing was changed" in output


def test_rm_asks_on_a_terminal(hostile: ServerProcess) -> None:
    status, output = on_terminal(("rm", "hostile"), environment(hostile), "n\n")
    assert status == 1 and "Drop hostile with 4 rows?" in output and "Nothing was changed" in output
    status, output = on_terminal(("rm", "hostile"), environment(hostile), "y\n")
    assert status == 0 and "undrop" in output


def test_arrow_is_not_sent_to_a_terminal(server: ServerProcess) -> None:
    status, output = on_terminal(("head", "films", "--format", "arrow"), environment(server))
    assert status == 2 and "not for a terminal" in output


def test_closed_pipe_ends_a_command_quietly(server: ServerProcess) -> None:
    rows = pa.table({"n": range(200_000)})
    catalog = HttpCaller(server.url)
    catalog.write("CreateTable", rows.to_reader(), "long", id=["long"])
    script = f"'{sys.executable}' -m tiltyard export long - --format csv | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], env=environment(server), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (141, "n\n", "")
    catalog.call("DropTable", id=["long"])
    catalog.close()


def test_interrupt_ends_a_command_with_130(server: ServerProcess, tmp_path: Path) -> None:
    fifo = tmp_path / "query"
    os.mkfifo(fifo)
    writer = os.open(fifo, os.O_RDWR)
    with fifo.open("rb", buffering=0) as stdin:
        process = subprocess.Popen(
            [*COMMAND, "sql", "-"], stdin=stdin, stderr=subprocess.PIPE, env=environment(server), text=True
        )
    time.sleep(2)  # it has begun to read, or has begun to import: both end alike
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    os.close(writer)
    assert (process.returncode, said) == (130, "tiltyard: interrupted.\n")


@pytest.mark.parametrize("device", ["/dev/full"])
def test_full_disk_is_said_in_one_sentence(server: ServerProcess, device: str) -> None:
    with Path(device).open("w") as full:
        done = subprocess.run(
            [*COMMAND, "head", "films", "--format", "jsonl"],
            stdout=full, stderr=subprocess.PIPE, env=environment(server), text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 7 and done.stderr == "tiltyard: The output: No space left on device.\n"


def test_ls_on_a_server_imports_neither_arrow_nor_lance(server: ServerProcess) -> None:
    code = (
        "import sys\nsys.argv[1:] = ['ls']\nfrom tiltyard.__main__ import main\n"
        "try:\n    main()\nfinally:\n    print(sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(server), capture_output=True, text=True, check=True
    )
    loaded = done.stdout
    assert "films" in loaded and "urllib3" in loaded
    assert not [
        name for name in ("pyarrow", "lance", "pydantic", "pyspark", "uvicorn", "rich") if f"'{name}'" in loaded
    ]


PROGRESS = """
import sys, time
from tiltyard.cli.output.progress import byte_progress, progress_bar
figures, reads = {"progress": "0.25", "stage": "write", "rows": "7"}, []
deadline = time.monotonic() + 60
with progress_bar("ingest", lambda: reads.append(1) or figures):
    while len(reads) < 8 and sys.stderr.isatty() and time.monotonic() < deadline:
        time.sleep(0.05)
    figures = {"progress": "1", "rows": "28"}
with byte_progress("import films", 100) as advance:
    advance(100, "[red]28 rows")
"""


def test_progress_is_shown_on_a_terminal_alone(server: ServerProcess) -> None:
    environ = environment(server)
    status, output = on_terminal(("-c", PROGRESS), environ, command=(sys.executable,))
    assert status == 0 and "ingest" in output and "25%" in output and "rows 7" in output
    assert "100%" in output and "rows 28" in output and "[red]28 rows" in output
    piped = subprocess.run([sys.executable, "-c", PROGRESS], env=environ, capture_output=True, text=True, check=True)
    assert (piped.stdout, piped.stderr) == ("", "")
