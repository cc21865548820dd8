"""Build the site of README.md, docs/ and the pages that they link to, by Zensical. A broken link fails the build.

python scripts/make_site.py [FOLDER]

Pages link to each other as files of the repository, so that their links work in an editor, too. Those outside of docs/
have a place in the site of their own (PAGES), and links to them are rewritten to it. Any other file of the repository
that a page links to is copied, to the same path.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

HOME = Path(__file__).resolve().parent.parent
CONFIG = "zensical.toml"
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "bench/RESULTS.md": "measurements.md",
    "bench/spark/RESULTS.md": "measurements-spark.md",
}
"""Pages outside of docs/, and where they are in the site."""
LINK = re.compile(r"(?<=\]\()[^)\s#:]+")
CODE_IN_CELL = re.compile(r"^\|.*`[^`\n]*\\\|[^`\n]*`.*$", re.MULTILINE)
"""A row of a table with `|` in code: the repository's form wants a backslash before it, that of the site none."""
CODE = re.compile(r"`[^`\n]+`")
COLOR = re.compile(r"\x1b\[[0-9;]*m")


def main() -> None:
    """Build the site into a folder, in place of what is there; end with status 1 where a page has a broken link."""
    parser = argparse.ArgumentParser(description="Build the site of the documentation.")
    parser.add_argument("folder", nargs="?", default=HOME / "build/site", type=Path)
    folder = parser.parse_args().folder
    with TemporaryDirectory(prefix="tiltyard-site-") as name:
        work = Path(name)
        write_sources(work / "docs")
        shutil.copy(HOME / CONFIG, work)
        build = [sys.executable, "-m", "zensical", "build", "--strict"]
        done = subprocess.run(build, cwd=work, capture_output=True, text=True, check=False)  # noqa: S603  # our own command
        if done.returncode:
            sys.exit(COLOR.sub("", done.stderr.partition("Traceback")[0]) or done.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(work / "site", folder)
    print(f"To read it, with its search: python -m http.server --bind 127.0.0.1 --directory {folder}")


def write_sources(folder: Path) -> None:
    """Write what the site is built from: all pages, with links to where files are in it, and the files they link to."""
    pages = {f"docs/{file.relative_to(HOME / 'docs').as_posix()}" for file in (HOME / "docs").rglob("*.md")}
    for source in sorted([*pages, *PAGES]):
        text = (HOME / source).read_text("utf-8")
        for link in set(LINK.findall(text)):
            path = linked_path(source, link)
            if path is not None and not path.endswith(".md"):
                target = folder / site_path(path)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(HOME / path, target)
        page = folder / site_path(source)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(page_text(source, text), "utf-8")
    shutil.copyfile(HOME / "src/tiltyard/console/static/icon.svg", folder / "img/icon.svg")


def page_text(source: str, text: str) -> str:
    """Return the text of a page of the repository as the site has it."""

    def rewrite(link: re.Match[str]) -> str:
        path = linked_path(source, link[0])
        if path is None:
            return link[0]
        return posixpath.relpath(site_path(path), posixpath.dirname(site_path(source)))

    text = CODE_IN_CELL.sub(lambda row: CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), text)
    return LINK.sub(rewrite, text)


def site_path(source: str) -> str:
    """Return where a file of the repository is in the site."""
    return PAGES.get(source, source.removeprefix("docs/"))


def linked_path(source: str, link: str) -> str | None:
    """Return the path in the repository that a link of a page means; None where there is no such file."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    return path if (HOME / path).is_file() else None


if __name__ == "__main__":
    main()
