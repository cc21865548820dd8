"""How values are shown: texts, numbers, sparklines, kinds of bytes, plans, and references to versions."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from lance_namespace.errors import InvalidInputError

from tests.services.console_data import SVG, png, wav
from tiltyard.console.browser_checks import is_loopback_name
from tiltyard.console.sessions import BrowserSession, Seals
from tiltyard.console.sign_in import safe_address
from tiltyard.console.table.cells import sniff
from tiltyard.console.table.grid import SPARK_HEIGHT, Cell, Grid, Row, bounded, sparkline
from tiltyard.console.table.heads import parse_ref
from tiltyard.console.table.plan_tree import read_plan
from tiltyard.console.table.search import fuse
from tiltyard.console.templates import ago, link, moment, number, percent, plain, plural, size
from tiltyard.identity.credentials import SessionIdentity

ANALYZED = """AnalyzeExec verbose=true, elapsed=5ms, metrics=[]
  LanceRead: elapsed=4ms, uri=home/me/films.lance/data, projection=[a, b], metrics=[output_rows=5, bytes_read=3.3 K]
    MatchQuery: column=text, query=[x]
  KNNVectorDistance: metric=l2"""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a\nb\tc", "a\nb\tc"),
        ("a\u202eb", "a⟨U+202E⟩b"),
        ("\u2066x\u2069\u200f", "⟨U+2066⟩x⟨U+2069⟩⟨U+200F⟩"),
        ("zero\u200bwidth\x00", "zero⟨U+200B⟩width⟨U+0000⟩"),
        ("no\u00a0break", "no break"),
        ("émile 漢字 👍", "émile 漢字 👍"),
    ],
)
def test_text_shows_what_would_hide_or_turn(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_text_is_cut() -> None:
    assert plain("x" * 10_000_000, 10) == "x" * 10 + "…"


def test_numbers_read_well() -> None:
    assert (number(1234567), number(0.5), number(None)) == ("1,234,567", "0.5", "\N{EN DASH}")
    assert (size(0), size(1023), size(1024), size(5 << 30)) == ("0 bytes", "1,023 bytes", "1 KiB", "5 GiB")
    assert (percent(999, 1000), percent(5, 5), percent(0, 0)) == (99, 100, 100)
    assert (plural(1, "table"), plural(2, "index")) == ("1 table", "2 indexes")
    assert ago(0, 3 * 3_600_000) == "3 hours ago" and ago(10, 5) == "just now"
    assert moment(0) == "1970-01-01 00:00:00" and moment(1 << 62) == str(1 << 62)


def test_link_encodes_names_and_leaves_empty_parameters_out() -> None:
    assert (
        link("rows", ("a/b", "c d"), filter="x=1&y", order="", at=None) == "/console/rows/a%2Fb/c%20d?filter=x%3D1%26y"
    )
    assert link("rows", ("a",), column=["x", "y"]) == "/console/rows/a?column=x&column=y"


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (png(1, 1, lambda x, y: (0, 0, 0)), "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (wav(440), "audio/wav"),
        (b"\0\0\0\x1cftypisom", "video/mp4"),
        (b"\0\0\0\x1cftypavif", "image/avif"),
        (SVG, None),
        (b"<!doctype html><script>", None),
        (b"", None),
        (b"\0\1\2", None),
    ],
)
def test_bytes_are_what_they_begin_with(head: bytes, kind: str | None) -> None:
    media = sniff(head[:64])
    assert (media.type if media is not None else None) == kind


@pytest.mark.parametrize("values", [[], [1.0], [0.0] * 300, list(range(1000)), [-1.0, 5.0]])
def test_sparkline_stays_in_its_box(values: list[float]) -> None:
    points = [tuple(map(float, pair.split(","))) for pair in sparkline(np.asarray(values, float)).split()]
    assert len(points) <= 48
    assert all(0 <= x <= 96 and 0 <= y <= SPARK_HEIGHT for x, y in points)


def test_nested_values_are_bounded() -> None:
    deep: object = 1
    for _ in range(100):
        deep = {"x": deep}
    assert "…" in str(bounded(deep))
    assert bounded(list(range(200)))[-1] == "… 150 more"
    assert bounded(math.nan) == "nan" and bounded(b"abc") == "3 bytes: YWJj"
    assert len(bounded("x" * 9999)) == 300


def test_plan_is_read_as_a_tree_without_the_folders_of_its_files() -> None:
    [root] = read_plan(ANALYZED).steps
    assert (root.name, root.elapsed, [step.name for step in root.inputs]) == (
        "AnalyzeExec",
        "5ms",
        ["LanceRead", "KNNVectorDistance"],
    )
    read = root.inputs[0]
    assert read.metrics == [("output rows", "5"), ("bytes read", "3.3 K")] and read.elapsed == "4ms"
    assert "uri=films.lance/data" in read.detail and "home" not in read.detail
    assert read.inputs[0].name == "MatchQuery" and "query=[x]" in read.inputs[0].detail


def test_plan_names_the_route_that_answers_and_why_no_other_does() -> None:
    plan = read_plan("Route: scan: Lance finds: all.\nNot view: it is a table.\nLanceRead: uri=a\n  Take: b")
    assert (plan.route, plan.how, plan.others) == ("scan", "Lance finds: all.", [("view", "it is a table.")])
    assert [step.name for step in plan.steps] == ["LanceRead"]
    assert [step.name for step in plan.steps[0].inputs] == ["Take"]


def test_ranks_of_two_searches_are_joined() -> None:
    def grid(*ids: int) -> Grid:
        return Grid((), [Row(number, (Cell("text"),), [("score", 1.0)]) for number in ids], has_more=False)

    joined = fuse([grid(1, 2, 3), grid(3, 4)], 3)
    assert [row.id for row in joined.rows] == [3, 1, 4] or [row.id for row in joined.rows] == [3, 1, 2]
    assert joined.has_more and joined.rows[0].scores[0][0] == "relevance"


def test_reference_to_a_version_is_parsed() -> None:
    assert parse_ref("") == {} and parse_ref("v12") == {"version": 12}
    assert parse_ref("tag:a:b") == {"tag": "a:b"}
    assert parse_ref("branch:x") == {"branch": "x"} and parse_ref("branch:x:7") == {"branch": "x", "version": 7}
    for text in ("12", "v", "vx", "v1.5", "tag:", "branch:", "nothing:x", "v" + "9" * 30, "v\u0661"):
        with pytest.raises(InvalidInputError):
            parse_ref(text)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("localhost:2333", True),
        ("127.0.0.1:1", True),
        ("127.9.9.9", True),
        ("[::1]:2333", True),
        ("a.localhost", True),
        ("", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.nip.io", False),
        ("0.0.0.0", False),
        ("192.168.1.2", False),
        ("host", False),
        ("[", False),
    ],
)
def test_loopback_names_are_told_from_others(host: str, expected: bool) -> None:
    assert is_loopback_name(host) is expected


def test_address_to_go_on_at_is_one_of_the_console() -> None:
    assert safe_address("/console/rows/a%20b?x=1") == "/console/rows/a%20b?x=1"
    for text in ("", "//evil", "https://evil", "/console", "/consoles/", "/console/\r\nx", "/console/\\evil"):
        assert safe_address(text) == "/console/"


def test_seal_opens_for_its_purpose_and_secret_alone() -> None:
    seals = Seals(b"k" * 32, lambda: 1_000)
    session = seals.start_session(SessionIdentity("ann", ("g",), "key", 1 << 62))
    sealed = seals.seal("session", session)
    assert seals.open("session", sealed, BrowserSession) == session
    assert "ann" not in sealed
    for opened in (
        seals.open("sign-in", sealed, BrowserSession),
        Seals(b"l" * 32, lambda: 1_000).open("session", sealed, BrowserSession),
        seals.open("session", sealed[:-2] + "AA", BrowserSession),
        seals.open("session", "", BrowserSession),
    ):
        assert opened is None
    assert seals.csrf_token(session) != seals.csrf_token(None)


def test_templates_have_nothing_inline() -> None:
    folder = Path(__file__).resolve().parents[3] / "src/tiltyard/console/templates"
    for template in folder.glob("*.html"):
        text = template.read_text()
        for wrong in (" style=", "<style", " onclick=", " onload=", "<script>", "|safe", "autoescape false", "hx-on"):
            assert wrong not in text, f"{template.name} has {wrong}"
