"""How much memory there is and is left: of the machine, of its control groups of both versions, and of none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.runtime.system_memory import SystemMemory, read_system_memory

if TYPE_CHECKING:
    from pathlib import Path

MEMINFO = "MemTotal:       1000 kB\nMemFree:         10 kB\nMemAvailable:    600 kB\nBuffers:          5 kB\n"
MACHINE = SystemMemory(1000 << 10, 600 << 10)


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def read(folder: Path, groups: str, meminfo: str = MEMINFO) -> SystemMemory | None:
    write(folder / "proc", meminfo=meminfo)
    write(folder / "proc" / "self", cgroup=groups)
    return read_system_memory(folder / "proc", folder / "groups")


def test_memory_without_a_limit_is_the_machines(tmp_path: Path) -> None:
    write(tmp_path / "groups" / "a", memory__max="max", memory__current=5, memory__stat="active_file 1")
    assert read(tmp_path, "0::/a") == MACHINE
    assert read(tmp_path, "3:cpu:/b\n0::/nowhere") == MACHINE


def test_memory_of_a_group_is_its_limit_and_of_what_it_is_in_the_least(tmp_path: Path) -> None:
    files = "anon 70000\nactive_file 20000\ninactive_file 10000"
    write(tmp_path / "groups" / "pod" / "own", memory__max=300_000, memory__current=110_000, memory__stat=files)
    assert read(tmp_path, "0::/pod/own") == SystemMemory(300_000, 220_000)
    files = "anon 190000\nactive_file 0\ninactive_file 5000"
    write(tmp_path / "groups" / "pod", memory__max=400_000, memory__current=195_000, memory__stat=files)
    assert read(tmp_path, "0::/pod/own") == SystemMemory(300_000, 210_000)
    write(tmp_path / "groups" / "pod", memory__current=500_000)
    assert read(tmp_path, "0::/pod/own") == SystemMemory(300_000, 0)


def test_memory_of_a_group_of_version_1_counts_groups_within_it(tmp_path: Path) -> None:
    files = "active_file 1\ninactive_file 1\ntotal_active_file 3000\ntotal_inactive_file 2000"
    group = {"memory__limit_in_bytes": 200_000, "memory__usage_in_bytes": 50_000, "memory__stat": files}
    write(tmp_path / "groups" / "memory", **group)
    # Docker names the host's folder, which a container does not see.
    assert read(tmp_path, "5:cpu:/docker/f00\n4:memory:/docker/f00\n0::/") == SystemMemory(200_000, 155_000)


def test_memory_of_another_system_is_not_told(tmp_path: Path) -> None:
    assert read_system_memory(tmp_path / "nowhere", tmp_path) is None
    assert read(tmp_path, "0::/", meminfo="MemTotal: 5 kB\n") is None


def test_memory_is_missing_where_less_than_a_tenth_is_left() -> None:
    assert SystemMemory(1000, 100).missing() == 0
    assert SystemMemory(1000, 99).missing() == 1
    assert SystemMemory(1000, 150).missing(50) == 0
    assert SystemMemory(1000, 150).missing(70) == 20
