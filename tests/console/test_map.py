"""The map of a table's vectors: what is projected, how points are coloured, and the pages within policies."""

from __future__ import annotations

import json
import re
from html import unescape
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from tests.console.test_versions import words
from tests.services.console_data import BIDI, SCRIPT
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream
from tiltyard.console.map.points import GRID, MAX_VALUES, color_by, has_umap, principal_components, to_grid

FRAGMENT = {"hx-request": "true"}
FILMS = "/map-points/cinema/films"


def points(http: httpx.Client, address: str, **query: str) -> dict[str, Any]:
    response = http.get(address, params=query, headers=FRAGMENT)
    assert response.status_code == 200, response.text
    data: dict[str, Any] = json.loads(unescape(re.findall(r"data-points='([^']*)'", response.text)[0]))
    return data


def test_components_are_those_of_the_largest_variance() -> None:
    rng = np.random.default_rng(5)
    plane = rng.normal(size=(500, 2)) * [9, 4]
    basis, _ = np.linalg.qr(rng.normal(size=(64, 2)))
    vectors = (plane @ basis.T + rng.normal(scale=0.01, size=(500, 64)) + 100).astype(np.float32)
    projection = principal_components(vectors)
    expected = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
    mine = np.abs(projection.points / np.linalg.norm(projection.points, axis=0))
    assert np.allclose(mine, np.abs(expected[0][:, :2]), atol=1e-3)
    assert projection.shares is not None and sum(projection.shares) == pytest.approx(1, abs=1e-3)
    assert np.array_equal(projection.points, principal_components(vectors).points)


@pytest.mark.parametrize("shape", [(3, 1), (3, 2), (4, 900), (50, 3)])
def test_few_and_equal_vectors_have_a_map(shape: tuple[int, int]) -> None:
    for vectors in (np.ones(shape, np.float32), np.random.default_rng(1).normal(size=shape).astype(np.float32)):
        x, y = to_grid(principal_components(vectors).points)
        assert len(x) == len(y) == shape[0] and all(0 <= value <= GRID for value in (*x, *y))
    assert to_grid(np.empty((0, 2))) == ([], [])


def test_points_are_coloured_by_frequent_values_or_by_stretches() -> None:
    words_of_it = ["a"] * 5 + ["b"] * 3 + [None] + [f"rare{number}" for number in range(20)]
    colors = color_by(words_of_it, "text")
    assert [key.label for key in colors.keys[:2]] == ["a", "b"] and colors.codes[:9] == [0] * 5 + [1] * 3 + [2]
    assert len(colors.keys) == MAX_VALUES + 1 and sum(key.count for key in colors.keys) == len(words_of_it)
    numbers = color_by([*range(100), None, float("nan")], "number")
    assert [key.count for key in numbers.keys] == [20, 20, 20, 20, 20, 2] and numbers.codes[99] == 4
    assert [key.label for key in color_by([1, 2, 1], "number").keys] == ["1", "2"]
    assert color_by([BIDI], "text").keys[0].label == "invoice ⟨U+202E⟩fdp.exe"


def test_map_has_a_point_a_row_and_leads_to_its_rows(http: httpx.Client) -> None:
    page = http.get("/map/cinema/films?color=genre").text
    assert "/console/map-points/cinema/films?at=v" in page and 'value="genre" selected' in page
    data = points(http, FILMS, color="genre")
    assert len(data["ids"]) == len(data["x"]) == len(data["codes"]) == 200 and data["colors"] == ["c0", "c1", "c2"]
    rows = words(http.get("/rows/cinema/films", params={"filter": f"_rowid IN ({','.join(data['ids'][:3])})"}))
    assert "Rows 1 to 3" in rows
    shown = http.get("/map-row/cinema/films", params={"row": data["ids"][7]}, headers=FRAGMENT).text
    assert "Film 7<" in shown and "more like this" in shown
    assert len(points(http, FILMS, filter="year < 1930", color="year")["ids"]) == 20


def test_rows_without_a_usable_vector_are_left_out_and_labels_are_text(
    http: httpx.Client, server: ServerProcess
) -> None:
    number = 4_100
    vectors: list[list[float] | None] = [[float(index), 1.0, float(index % 7)] for index in range(number)]
    vectors[1], vectors[3] = None, [float("nan"), 1.0, 1.0]
    rows = pa.table(
        {
            "vector": pa.array(vectors, pa.list_(pa.float32(), 3)),
            "label": [SCRIPT if index % 2 else BIDI for index in range(number)],
        }
    )
    with Wire(server.url) as wire:
        wire.good(wire.table(["media", "points"], "create", stream(rows)))
        try:
            sampled = http.get("/map-points/media/points?color=label", headers=FRAGMENT).text
            few = http.get("/map-points/media/points?filter=_rowid+<+6", headers=FRAGMENT).text
            none = http.get("/map-points/media/points?filter=_rowid+<+2", headers=FRAGMENT).text
        finally:
            wire.good(wire.table(["media", "points"], "drop"))
    assert "rows out of 4,100, taken at equal distances" in sampled and SCRIPT not in sampled
    data = json.loads(unescape(re.findall(r"data-points='([^']*)'", sampled)[0]))
    ids = [int(row) for row in data["ids"]]
    assert 1300 < len(ids) <= 2000 and {after - before for before, after in pairwise(ids)} <= {3, 6}
    assert "2 rows without a vector" in few and "of 4 rows" in " ".join(few.split())
    assert "1 row of 2 have a vector" in " ".join(none.split())


@pytest.mark.parametrize(
    ("address", "status", "message"),
    [
        ("/map/cinema/films?column=title", 400, "no column that has vectors"),
        ("/map-points/cinema/films?color=vector", 400, "no column that has colours"),
        ("/map-points/cinema/films?filter=year+>", 400, "Error parsing statement"),
        ("/map-points/cinema/films?method=magic", 400, "pca, umap"),
        ("/map-points/media/pictures", 400, "no vectors"),
        ("/map-row/cinema/films", 400, "Which row"),
        ("/map/cinema/nothing", 404, "nothing"),
    ],
)
def test_wrong_map_is_said(http: httpx.Client, address: str, status: int, message: str) -> None:
    response = http.get(address, headers=FRAGMENT)
    assert response.status_code == status and message in unescape(response.text) and "Traceback" not in response.text


def test_table_without_vectors_says_what_to_do(http: httpx.Client) -> None:
    assert "no column of vectors" in words(http.get("/map/media/pictures"))
    gone = http.get("/map-row/cinema/films?row=999999999", headers=FRAGMENT)
    assert "This row is gone" in gone.text


@pytest.mark.skipif(has_umap(), reason="umap-learn is installed here")
def test_umap_that_is_not_installed_is_refused_by_one_sentence(http: httpx.Client) -> None:
    assert "UMAP" not in http.get("/map/cinema/films").text
    refused = http.get("/map-points/cinema/films?method=umap", headers=FRAGMENT)
    assert refused.status_code == 400 and "pip install umap-learn" in refused.text
