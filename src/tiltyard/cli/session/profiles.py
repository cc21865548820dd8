"""Profiles: servers and their keys by name, in one file that only its owner can read."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.runtime.durability import replace_file

DEFAULT = "default"
"""The name of the profile that `tiltyard login` stores without another name."""
FILE_MODE, FOLDER_MODE = 0o600, 0o700


class ProfileError(CommandError):
    """The file of profiles cannot be used; the message says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitStatus.LOCAL_FILE)


@dataclass(frozen=True, slots=True)
class Profile:
    """A server to use: its URL, and the API key, empty where it needs none."""

    url: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class Profiles:
    """All profiles by name; `current` is used where a command names none, empty where there is none."""

    by_name: dict[str, Profile]
    current: str = ""


def profiles_path() -> Path:
    """Return the path of the file: in XDG_CONFIG_HOME, ~/.config by default."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "tiltyard" / "profiles.json"


def read_profiles() -> Profiles:
    """Read all profiles; none where there is no file. Raises ProfileError for a file that others can read."""
    path = profiles_path()
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read()
    except FileNotFoundError:
        return Profiles({})
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror}.") from error
    if mode & 0o077:
        raise ProfileError(f"{path} holds keys, and others can read it: chmod 600 {path}")
    try:
        return _decode(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProfileError(f"{path} is damaged: remove it, and log in again.") from error


def write_profiles(profiles: Profiles) -> None:
    """Replace the file atomically; nobody but its owner can read it at any moment. Raises ProfileError."""
    path = profiles_path()
    content = {
        "current": profiles.current,
        "profiles": {name: {"url": each.url, "key": each.key} for name, each in sorted(profiles.by_name.items())},
    }
    try:
        path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        replace_file(str(path), json.dumps(content, indent=2).encode(), FILE_MODE)
    except OSError as error:
        raise ProfileError(f"{path} cannot be written: {error.strerror}.") from error


def _decode(content: Any) -> Profiles:
    entries = {str(name): Profile(str(each["url"]), str(each["key"])) for name, each in content["profiles"].items()}
    return Profiles(entries, str(content["current"]))
