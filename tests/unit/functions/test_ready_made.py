"""What ready-made functions have in common: arguments, versions, digests, pickles, and how they are called."""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.functions.images import picture
from tests.unit.functions.onnx_models import write_means
from tiltyard.functions import ReadyMade, chunk_words, detect_language, embed_text, hash_image, list_functions
from tiltyard.functions.ready_made import MAX_TEXT_BYTES, Takes, find_function, is_ready_made, parse_ready_made
from tiltyard.lake.functions import column_function, function_name, pickled_function
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.functions.user_functions import PickledFunction, UserFunction, parse_user_function

MODEL = {"model": "wordllama", "tokenizer": "wordllama"}
TEXTS = ["Dr. Ada wrote to ada@example.org.\n\n# It was the day of the cat and of the dog. It is there.", "", "x"]
VALUES = {
    "chunk_markdown": (1, "c85b294df9d6"),
    "chunk_sentences": (1, "e55925f837e8"),
    "chunk_tokens": (1, "e55925f837e8"),
    "chunk_words": (1, "e55925f837e8"),
    "describe_image": (1, "6af7be5cee67"),
    "detect_language": (1, "5b0fa4bd5e96"),
    "find_pii": (1, "620913364a70"),
    "mask_pii": (1, "825f0dcec630"),
    "measure_text": (1, "ba7932765cad"),
}
"""The version of each function whose values do not depend on processors and libraries, and a digest of some values."""


_images = TemporaryDirectory()
write_means(Path(_images.name) / "model.onnx")


def ready(function: ReadyMade) -> ReadyMade:
    """A function with the arguments that it needs."""
    needed = {"model": _images.name} if function.takes is Takes.IMAGE else MODEL
    return function.with_arguments({spec.name: needed[spec.name] for spec in function.specs if spec.name in needed})


def column(function: ReadyMade) -> pa.Array:
    if function.takes is Takes.TEXT:
        return pa.array([*TEXTS, None])
    return pa.array([picture(), None])


@pytest.mark.parametrize("function", list_functions(), ids=str)
def test_each_function_has_its_type_keeps_nulls_and_computes_each_value_whatever_stands_beside_it(
    function: ReadyMade,
) -> None:
    function, values = ready(function), column(function)
    computed = function(values)
    assert (computed.type, len(computed)) == (function.result_type, len(values)) and computed[-1].as_py() is None
    assert function(values.slice(0, 1))[0] == computed[0]
    assert function(pa.record_batch([values.dictionary_encode()], ["x"])).equals(computed)
    assert function(pa.chunked_array([values.slice(0, 1), values.slice(1)])).equals(computed)
    assert function(values.slice(0, 0)).type == function.result_type
    assert function(values[0].as_py()) == computed[0].as_py() and function(None) is None
    nothing = function(pa.nulls(3))
    assert (nothing.type, nothing.null_count) == (function.result_type, 3)


def test_functions_whose_values_change_get_another_version() -> None:
    found = {}
    for name in VALUES:
        function = ready(find_function(name))
        values = function(column(function)).to_pylist()
        found[name] = function.version, hashlib.sha256(json.dumps(values).encode()).hexdigest()[:12]
    assert found == VALUES, "a function computes other values: raise its version, and write the new digest here"


@pytest.mark.parametrize("function", list_functions(), ids=str)
def test_functions_travel_by_name_version_and_arguments_as_text_and_pickled(function: ReadyMade) -> None:
    function = ready(function)
    assert parse_ready_made(str(function)).digest == function.digest
    opened = pickle.loads(base64.b64decode(function.pickled()))  # our own
    assert (opened.digest, opened.pickled()) == (function.digest, function.pickled())
    assert len(function.pickled()) < 1000
    loaded = parse_user_function(function_name(function, "udf"))
    assert loaded == PickledFunction(pickled_function(function))
    assert loaded.load()(column(function)).equals(function(column(function)))


def test_digest_is_of_name_version_arguments_and_model() -> None:
    digests = {
        each.digest
        for each in (chunk_words, chunk_words(size=9, overlap=1), chunk_words(size=9), replace(chunk_words, version=2))
    }
    assert chunk_words.pickled() == chunk_words(overlap=0, size=200).pickled()
    assert len(digests) == 4 and chunk_words(size=200).digest == chunk_words.digest
    model = embed_text(model="wordllama")
    assert replace(model, depends_on="other").digest != model.digest


def test_other_versions_and_other_models_are_refused_by_those_that_run_functions() -> None:
    older = base64.b64encode(pickle.dumps(replace(chunk_words, version=0))).decode()
    with pytest.raises(RefusedError, match="chunk_words is version 1 here, and version 0 is asked for"):
        PickledFunction(older).load()
    with pytest.raises(RefusedError, match="version 7 is asked for: use the Tiltyard that has it, or declare"):
        parse_ready_made("chunk_words@7(size=3)")
    other = base64.b64encode(pickle.dumps(replace(embed_text(model="wordllama"), depends_on="0" * 64))).decode()
    with pytest.raises(RefusedError, match="was made with other files than those that are here"):
        PickledFunction(other).load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chunk_wrods(size=3)", r"no ready-made function 'chunk_wrods' \(`tiltyard functions` lists them\)"),
        ("length", "write the name of one, or module:function"),
        ("chunk_words(sise=3)", "chunk_words has no argument 'sise': it has size, overlap"),
        ("hash_image(size=3)", "hash_image has no argument 'size': it has none"),
        ("chunk_words(size='3')", "size is '3', and has to be a whole number"),
        ("chunk_words(size=True)", "size is True, and has to be a whole number"),
        ("find_pii(kinds='email')", "kinds is 'email', and has to be a list of texts"),
        ("find_pii(kinds=['name'])", "kinds has 'name': there are email, iban"),
        ("find_pii(kinds=[])", "kinds is empty"),
        ("chunk_words(size=0)", "size is 0: it is 1 to 100000"),
        ("chunk_words(size=5, overlap=5)", "overlap is 5: it is 0 or more, and less than size, which is 5"),
        ("chunk_words(3)", r"write chunk_words\(argument=value, …\)"),
        ("chunk_words(size=open('x'))", "arguments of chunk_words cannot be read"),
        ("chunk_words(**{'size': 3})", "has no argument"),
        ("chunk_words(size=3", "is no ready-made function|names no function"),
        ("chunk_words(size=3)(x)", "arguments of chunk_words cannot be read"),
        ("chunk_tokens()", r"chunk_tokens needs tokenizer: write chunk_tokens\(tokenizer=…\)"),
        ("embed_text", r"embed_text needs model"),
        ("embed_text(model='bert')", "no model 'bert' here: name a package that has one.*Nothing is downloaded"),
        ("embed_text(model='wordllama', batch_size=0)", "batch_size is 0"),
        ("embed_text(model='wordllama', engine='onnx')", "computed by static: leave engine out"),
        ("embed_text(model='wordllama', engine='torch')", "it is static, onnx, sentence-transformers"),
        ("decode_image(width=5000)", "width is 5000: it is 1 to 1024"),
        ("resize_image(format='exe')", "format is 'exe': it is jpeg, png, webp"),
        ("resize_image(quality=0)", "quality is 0"),
        ("detect_language(min_share=2)", "min_share is 2.0"),
        ("measure_text(min_words=9, max_words=3)", "min_words is 9 and max_words 3"),
    ],
)
def test_wrong_functions_and_arguments_are_refused_with_what_to_write(text: str, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        parse_user_function(text)


def test_other_functions_are_not_taken_for_ready_made_ones() -> None:
    assert not any(map(is_ready_made, ("words:length", "words.py:length", "Chunk", "pickle:abc", "a" * 5000, "")))
    assert parse_user_function("tiltyard.functions:detect_language") == UserFunction(
        "tiltyard.functions", "detect_language"
    )
    loaded = parse_user_function("tiltyard.functions:detect_language").load()
    assert loaded(pa.array(["It is the end of it."])).to_pylist() == ["en"]


@pytest.mark.parametrize(
    ("function", "rows", "message"),
    [
        (detect_language, pa.array([1]), "takes a column of text, and this one is int64"),
        (detect_language, pa.table({"a": ["x"], "b": ["y"]}), "takes one column, and is given 2"),
        (detect_language, [1], "takes a column of Arrow, and not list"),
        (detect_language, b"x", "takes text, and not bytes"),
        (hash_image, pa.array(["x"]), "takes a column of images as bytes, and this one is string"),
    ],
)
def test_other_columns_are_refused(function: ReadyMade, rows: Any, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        function(rows)
    with pytest.raises(RefusedError, match="a column and arguments at once"):
        function(rows, size=3)


def test_texts_of_too_many_bytes_fail_as_rows_do() -> None:
    for long in (pa.array(["x" * (MAX_TEXT_BYTES + 1)]), "ü" * (MAX_TEXT_BYTES // 2 + 1)):
        with pytest.raises(ValueError, match="bytes, and 8388608 at most are taken"):
            chunk_words(long)


def test_columns_know_the_type_of_a_function() -> None:
    assert column_function(detect_language, ["text"], None) == (detect_language, ["text"], pa.string())
    assert column_function(detect_language, None, pa.large_string())[2] == pa.large_string()
    with pytest.raises(RefusedError, match="needs model"):
        column_function(embed_text, ["text"], pa.list_(pa.float32(), 3))


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiltyard.functions.ready_made.find_spec", lambda module: None)
    assert hash_image.missing_packages == ["pillow"]
    with pytest.raises(RefusedError, match="hash_image needs the package pillow: install it where functions run"):
        hash_image(pa.array([b"x"]))
