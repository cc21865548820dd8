"""The bundled sample: facts that are whole, vectors that belong to them, and what a text without a vector is told."""

from __future__ import annotations

import numpy as np
import pytest
from lance_namespace.errors import InvalidInputError

from tests.services.cases import check_each
from tiltyard.sample import embedding
from tiltyard.sample.films import DIMENSIONS, LIKED_FILM, TEXTS, example_searches, read_facts, read_films, read_vectors
from tiltyard.sample.loading import is_sample


def test_films_are_whole() -> None:
    films = read_films()
    assert [field.name for field in films.schema][:3] == ["id", "title", "year"]
    assert films["id"].to_pylist() == list(range(1, films.num_rows + 1))
    pairs = list(zip(films["title"].to_pylist(), films["year"].to_pylist(), strict=True))
    assert len(set(pairs)) == films.num_rows
    for film in read_facts():
        assert 1900 < film["year"] < 2030 and 10 < film["minutes"] < 500, film
        assert film["title"] and film["country"] and film["director"] and film["genres"], film
        assert film["about"].endswith(".") and 20 < len(film["about"]) < 160, film
    assert is_sample({name.decode(): value.decode() for name, value in (films.schema.metadata or {}).items()})


def test_vectors_are_those_of_films_and_texts() -> None:
    vectors = read_vectors()
    assert vectors.shape == (len(read_facts()) + len(TEXTS), DIMENSIONS)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3)
    np.testing.assert_array_equal(embedding.embed([TEXTS[1]])[0], vectors[len(read_facts()) + 1])


def test_other_text_without_the_model_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "find_spec", lambda name: None)
    with pytest.raises(InvalidInputError, match=r"a lonely robot in love.*pip install wordllama"):
        embedding.embed(["something else"])


def test_table_with_other_metadata_is_not_the_sample() -> None:
    others = (None, {}, *({"embedding_functions": text} for text in ("", "[]", "[1]", "{}", '[{"name": "openai"}]')))
    check_each(others, lambda metadata: not is_sample(metadata) or pytest.fail(str(metadata)))


def test_search_for_a_film_that_is_gone_is_left_out() -> None:
    asked: list[str] = []
    examples = list(example_searches(asked.append))
    assert asked == [f"title = '{LIKED_FILM}'"]
    assert [example.parameters["mode"] for example in examples] == ["vector", "text"]
