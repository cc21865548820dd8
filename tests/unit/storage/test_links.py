"""Reads follow no symbolic links."""

from __future__ import annotations

from pathlib import Path

import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard.storage import files


def test_read_nofollow_refuses_links_anywhere_in_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, linked = tmp_path / "folder", tmp_path / "linked"
    folder.mkdir()
    (folder / "file").write_bytes(b"x")
    linked.symlink_to(folder)
    (folder / "link").symlink_to(folder / "file")
    disks = files.LocalFiles()
    for check in (files._is_opened_at, lambda descriptor, location: False):  # where the system cannot tell
        monkeypatch.setattr(files, "_is_opened_at", check)
        assert disks.read_nofollow(str(folder / "file")).content == b"x"
        for location in (linked / "file", folder / "link"):
            with pytest.raises(InvalidInputError, match="link"):
                disks.read_nofollow(str(location))
    with pytest.raises(FileNotFoundError):
        disks.read_nofollow(str(folder / "gone"))
