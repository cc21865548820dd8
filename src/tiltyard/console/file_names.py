"""Names of files to save, as Content-Disposition has them (RFC 6266): the name of a table in any script, and safe."""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import quote

MAX_NAME = 120
"""Characters of a file's name before its ending: systems take 255 bytes."""
_UNSAFE = re.compile(r'[\\/:*?"<>|%\x00-\x1f\x7f]+')
_ATTRIBUTE_CHARACTERS = "!#$&+-.^_`|~"
"""What RFC 8187 leaves as it is in an encoded name, beside letters and digits."""


def attachment(name: str, ending: str) -> str:
    """Return the header for a file to save: a name in ASCII for old programs, the true one in UTF-8."""
    safe = safe_name(name)
    plain = unicodedata.normalize("NFKD", safe).encode("ascii", "ignore").decode().strip(" .") or "file"
    if plain == safe:
        return f'attachment; filename="{safe}.{ending}"'
    encoded = quote(safe, safe=_ATTRIBUTE_CHARACTERS)
    return f"attachment; filename=\"{plain}.{ending}\"; filename*=UTF-8''{encoded}.{ending}"


def safe_name(name: str) -> str:
    """Return a name without what a file system or a header would take for something else, "file" for nothing."""
    kept = "".join(character if character.isprintable() else "_" for character in name)
    return _UNSAFE.sub("_", kept)[:MAX_NAME].strip(" .") or "file"
