"""Fuzz one target, guided by coverage, in a process of its own: atheris drives LLVM's libFuzzer, which ends it.

An error that a target does not declare is a fault: it is written down, and fuzzing goes on. What ends the process (a
crash in a native library, no memory, an input without end) is a fault as well, which libFuzzer writes down.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType

import atheris

from tests.fuzz.parsers.corpus import MAX_CORPUS_BYTES, written
from tests.fuzz.parsers.target import MAX_INPUT_BYTES, Target

MAX_MEMORY_MIB = 4096
HANG_SECONDS = 120
"""Time after which an input has no end; what takes processor time is found by the target before."""
_COVERAGE = re.compile(r"cov: (\d+)")
_EXECUTIONS = re.compile(r"number_of_executed_units: (\d+)|^#(\d+)", re.MULTILINE)


@dataclass
class Findings:
    """What fuzzing of a target found: `faults` are the inputs by what went wrong, `kept` those of the new corpus."""

    executions: int = 0
    edges: int = 0
    seconds: float = 0.0
    faults: dict[str, bytes] = field(default_factory=dict)
    found: list[bytes] = field(default_factory=list)
    kept: list[bytes] = field(default_factory=list)


def fuzz(target: Target, corpus: list[bytes], seconds: float, folder: Path, *, seed: int = 0) -> Findings:
    """Fuzz a target for so many seconds of processor time, beginning with a corpus, in an empty folder.

    A seed of 0 is another one each time.
    """
    known, new, faults = (_folder(folder / name) for name in ("known", "new", "faults"))
    _write(known, corpus)
    words = folder / "words"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words))
    options = [
        f"-artifact_prefix={faults}/crash-", f"-max_len={MAX_INPUT_BYTES}", f"-seed={seed}",
        f"-timeout={HANG_SECONDS}", f"-rss_limit_mb={MAX_MEMORY_MIB}", "-print_final_stats=1", "-len_control=50",
        *([f"-dict={words}"] if target.words else []),
        str(new), str(known),
    ]  # fmt: skip
    log = folder / "log"
    findings = Findings()
    findings.seconds = _in_process(lambda: _drive(target, options, seconds, faults), log)
    said = log.read_text(errors="replace")
    findings.edges = max(map(int, _COVERAGE.findall(said)), default=0)
    findings.executions = max((int(done or at) for done, at in _EXECUTIONS.findall(said)), default=0)
    findings.faults = _read_faults(faults, said)
    findings.found = [path.read_bytes() for path in sorted(new.iterdir())]
    return findings


def minimize(target: Target, inputs: list[bytes], folder: Path) -> list[bytes]:
    """Return the smallest inputs that reach all that any input reaches, in an empty folder.

    All that reach a new edge are kept; of those that reach one another number of times, so many as fit.
    """
    ordered = sorted(set(inputs), key=lambda each: (len(each), each))
    paths = _write(_folder(folder / "inputs"), ordered)
    control = folder / "control"
    control.write_text("\n".join([str(len(paths)), "0", *map(str, paths)]) + "\n")
    _in_process(
        lambda: _drive(target, ["-merge_inner=1", f"-merge_control_file={control}"], None, folder), folder / "log"
    )
    edges: set[int] = set()
    features: set[int] = set()
    reached: dict[int, dict[str, set[int]]] = {}
    for line in control.read_text().splitlines()[len(paths) + 2 :]:
        kind, number, *values = line.split()
        if kind in ("FT", "COV"):
            reached.setdefault(int(number), {})[kind] = set(map(int, values))
    kept, size = [], 0
    for is_for_edges in (True, False):
        for number, data in enumerate(ordered):
            of = reached.get(number, {})
            is_new = of.get("COV", set()) - edges if is_for_edges else of.get("FT", set()) - features
            length = len(written(data))
            if is_new and data not in kept and (is_for_edges or size + length <= MAX_CORPUS_BYTES):
                kept.append(data)
                size += length
                edges |= of.get("COV", set())
                features |= of.get("FT", set())
    return kept


def _drive(target: Target, options: list[str], seconds: float | None, faults: Path) -> None:
    """Give the process to libFuzzer, which never returns, until its processor time is over (None: until it is done)."""
    begun = time.process_time()

    def run(data: bytes) -> None:
        try:
            target.check(data)
        except Exception as error:  # noqa: BLE001  # whatever a target does not declare is a fault
            _write_fault(faults, data, error)
        if seconds is not None and time.process_time() - begun > seconds:
            os.kill(os.getpid(), signal.SIGUSR1)  # libFuzzer ends after this input, and prints what it did

    for module in target.modules():
        _instrument(module)
    atheris.Setup([sys.argv[0], *options], run)
    atheris.Fuzz()


def _instrument(module: ModuleType) -> None:
    """Let all functions of a module, and the methods of its classes, say which of their branches are taken."""
    pending: list[object] = list(vars(module).values())
    while pending:
        item = pending.pop()
        if isinstance(item, type) and item.__module__ == module.__name__:
            pending += vars(item).values()
        elif isinstance(item, classmethod | staticmethod):
            pending.append(item.__func__)
        elif isinstance(item, property):
            pending += (item.fget, item.fset)
        elif (inner := getattr(item, "__wrapped__", None)) is not None:
            pending.append(inner)
        if isinstance(item, FunctionType) and item.__module__ == module.__name__:
            atheris.instrument_func(item)


def _write_fault(faults: Path, data: bytes, error: Exception) -> None:
    """Write a fault down: of those with one error at one place, the shortest input."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
    path = faults / re.sub(r"\W+", "-", place)
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size <= len(data):
            return
    path.write_bytes(data)
    said = "".join(traceback.format_exception(error))[-3000:]
    path.with_name(f"{path.name}.txt").write_text(f"{place}: {said}")


def _read_faults(folder: Path, said: str) -> dict[str, bytes]:
    faults = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("crash-"):
            faults[said[-3000:]] = path.read_bytes()
        elif not path.name.endswith(".txt"):
            faults[path.with_name(f"{path.name}.txt").read_text()] = path.read_bytes()
    return faults


def _in_process(work: object, log: Path) -> float:
    """Run work in a copy of this process that writes to a log; return the processor time that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not (child := os.fork()):
        try:
            with log.open("wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            work()  # type: ignore[operator]  # a function without arguments
        finally:
            os._exit(70)
    os.waitpid(child, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def _write(folder: Path, inputs: list[bytes]) -> list[Path]:
    paths = [folder / f"{number:05}" for number in range(len(inputs))]
    for path, data in zip(paths, inputs, strict=True):
        path.write_bytes(data)
    return paths


def _escaped(word: str) -> str:
    """Return a word as dictionaries of libFuzzer have it."""
    data = word.encode()
    return "".join(chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02X}" for byte in data)
