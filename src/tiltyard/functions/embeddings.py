"""Vectors of texts, by a model that is here: tables of vectors of tokens, ONNX Runtime, sentence-transformers.

A process loads a model once. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from tiltyard.functions.model_files import (
    Engine,
    ModelFiles,
    digest_files,
    find_model,
    import_package,
    load_once,
    open_tokenizer,
)
from tiltyard.functions.onnx_sessions import gpu_of_task, open_session, torch_device
from tiltyard.functions.ready_made import Takes, ready_made
from tiltyard.model.refusals import RefusedError

if TYPE_CHECKING:
    import numpy as np


MAX_TOKENS = 512
"""Tokens of a text that a model takes, where its files say nothing: the others are left out."""


class EmbeddingModel(Protocol):
    """Computes vectors of texts."""

    @property
    def dimensions(self) -> int:
        """The length of its vectors."""

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return a row of float32 for each text; of NaN for one without any token."""


def open_model(files: ModelFiles) -> EmbeddingModel:
    """Open a model, once a process. Raises RefusedError for a missing package, and for files that are no such model."""
    model: EmbeddingModel = load_once(_open, (files, gpu_of_task()))
    return model


def _open(key: tuple[ModelFiles, int | None]) -> EmbeddingModel:
    files, _ = key
    kinds: dict[Engine, type[_StaticModel | _OnnxModel | _SentenceTransformer]] = {
        Engine.STATIC: _StaticModel,
        Engine.ONNX: _OnnxModel,
        Engine.SENTENCE_TRANSFORMERS: _SentenceTransformer,
    }
    return kinds[files.engine](files)


class _StaticModel:
    """The mean of the vectors of a text's tokens, in a table that is the only tensor of a file of safetensors."""

    def __init__(self, files: ModelFiles) -> None:
        import numpy as np  # noqa: PLC0415  # as the model's own package: when a model is used

        self._tokenizer = open_tokenizer(files.tokenizer)
        self._tokenizer.no_truncation()
        safetensors: Any = import_package("safetensors", "safetensors")
        try:
            with safetensors.safe_open(str(files.weights), "np") as tensors:
                names = list(tensors.keys())
                table = tensors.get_tensor(names[0])
        except Exception as error:  # the package has an error of its own, which is not exported everywhere
            raise RefusedError(f"{files.weights} cannot be read: {error}.") from error
        if len(names) != 1 or table.ndim != 2:
            raise RefusedError(f"{files.weights} is no static model: that has one table of vectors alone.")
        if len(table) < self._tokenizer.get_vocab_size():
            raise RefusedError(f"{files.weights} has fewer vectors than its tokenizer has tokens.")
        self._table = np.ascontiguousarray(table, dtype=np.float32)
        unknown = getattr(self._tokenizer.model, "unk_token", None)
        self._unknown = None if unknown is None else self._tokenizer.token_to_id(unknown)

    @property
    def dimensions(self) -> int:
        return int(self._table.shape[1])

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        import numpy as np  # noqa: PLC0415  # see above

        vectors = np.full((len(texts), self.dimensions), np.nan, dtype=np.float32)
        for row, encoded in enumerate(self._tokenizer.encode_batch(list(texts), add_special_tokens=False)):
            tokens = [token for token in encoded.ids if token != self._unknown]
            if tokens:
                kinds, counts = np.unique(tokens, return_counts=True)  # a long text takes no more than the table
                vectors[row] = counts.astype(np.float32) @ self._table[kinds] / np.float32(len(tokens))
        return vectors


class _OnnxModel:
    """A transformer that ONNX Runtime computes; its vectors of tokens become one as its folder says."""

    def __init__(self, files: ModelFiles) -> None:
        self._session = open_session(files.weights)
        self._names = [each.name for each in self._session.get_inputs()]
        if unknown := sorted(set(self._names) - {"input_ids", "attention_mask", "token_type_ids"}):
            raise RefusedError(f"{files.weights} takes {unknown[0]}, and is no model of texts.")
        self._tokenizer = open_tokenizer(files.tokenizer)
        self._tokenizer.enable_truncation(_most_tokens(files, self._tokenizer.truncation))
        self._uses_first = bool(files.settings("1_Pooling/config.json").get("pooling_mode_cls_token"))
        self.dimensions = int(self.encode(["a"]).shape[1])

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        import numpy as np  # noqa: PLC0415  # see above

        encoded = self._tokenizer.encode_batch(list(texts))
        width = max(1, *(len(each.ids) for each in encoded))
        tokens = np.zeros((len(texts), width), dtype=np.int64)
        mask = np.zeros_like(tokens)
        for row, each in enumerate(encoded):
            tokens[row, : len(each.ids)] = each.ids
            mask[row, : len(each.ids)] = 1
        inputs = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": np.zeros_like(tokens)}
        output = self._session.run(None, {name: inputs[name] for name in self._names})[0]
        return self._pool(np.asarray(output, dtype=np.float32), mask)

    def _pool(self, output: np.ndarray, mask: np.ndarray) -> np.ndarray:
        import numpy as np  # noqa: PLC0415  # see above

        if output.ndim == 2:
            return output
        if self._uses_first:
            return output[:, 0]
        weights = mask[:, :, None].astype(np.float32)
        with np.errstate(invalid="ignore"):  # a text without tokens: 0 / 0
            mean: np.ndarray = (output * weights).sum(axis=1) / weights.sum(axis=1)
        return mean


def _most_tokens(files: ModelFiles, truncation: Any) -> int:
    """Return how many tokens of a text a model takes, as its own files say."""
    said = (
        files.settings("sentence_bert_config.json").get("max_seq_length"),
        (truncation or {}).get("max_length"),
        files.settings("config.json").get("max_position_embeddings"),
    )
    return next((number for number in said if isinstance(number, int) and number > 0), MAX_TOKENS)


class _SentenceTransformer:
    """A model that the package sentence-transformers computes, from its folder alone."""

    def __init__(self, files: ModelFiles) -> None:
        package: Any = import_package("sentence_transformers", "sentence-transformers")
        self._model = package.SentenceTransformer(str(files.folder), device=torch_device(), local_files_only=True)
        model = self._model  # the method has another name since version 6
        named = getattr(model, "get_embedding_dimension", None) or model.get_sentence_embedding_dimension
        self.dimensions = int(named())

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        import numpy as np  # noqa: PLC0415  # see above

        vectors = self._model.encode(
            list(texts), batch_size=len(texts), convert_to_numpy=True, show_progress_bar=False
        )  # fmt: skip
        return np.asarray(vectors, dtype=np.float32)


MAX_BATCH_SIZE = 4096
"""Texts that a model may be asked to compute at once."""


def _vector_type(*, model: str, engine: str | None, normalize: bool, batch_size: int) -> pa.DataType:
    if not 1 <= batch_size <= MAX_BATCH_SIZE:
        raise RefusedError(f"batch_size is {batch_size}: it is 1 to {MAX_BATCH_SIZE}.")
    return pa.list_(pa.float32(), open_model(find_model(model, engine)).dimensions)


def _fingerprint(*, model: str, engine: str | None, **_: object) -> str:
    return digest_files(find_model(model, engine))


@ready_made(
    version=1, takes=Takes.TEXT, result=_vector_type, result_text="vector of float32, as long as the model's",
    fingerprint=_fingerprint,
)  # fmt: skip
def embed_text(
    texts: pa.Array, *, model: str, engine: str | None = None, normalize: bool = True, batch_size: int = 32
) -> pa.Array:
    """Compute the vectors of texts by a model: of a package that ships one, or in a local folder.

    `engine` says what computes it, where its folder has files for several: static, onnx or sentence-transformers.
    Texts of like lengths are computed together, `batch_size` at once. With `normalize` vectors have the length 1. A
    text without tokens has no vector.
    """
    import numpy as np  # noqa: PLC0415  # as models: where they are used

    opened = open_model(find_model(model, engine))
    rows = [row for row, value in enumerate(texts.is_valid().to_pylist()) if value]
    values = texts.to_pylist()
    rows.sort(key=lambda row: len(values[row]))
    vectors = np.full((len(texts), opened.dimensions), np.nan, dtype=np.float32)
    for start in range(0, len(rows), batch_size):
        part = rows[start : start + batch_size]
        vectors[part] = opened.encode([values[row] for row in part])
    return to_vector_column(vectors, normalize=normalize)


def to_vector_column(vectors: Any, *, normalize: bool) -> pa.Array:
    """Return rows of numpy as a column of vectors, of length 1 with `normalize`; null where they are not finite."""
    import numpy as np  # noqa: PLC0415  # as models: where they are used

    if normalize:
        with np.errstate(invalid="ignore", divide="ignore"):
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    is_missing = ~np.isfinite(vectors).all(axis=1)
    vectors[is_missing] = 0
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1], mask=pa.array(is_missing))
