"""Vectors of images, by a model of ONNX in a local folder; preprocessor_config.json says how images are prepared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tiltyard.functions.embeddings import to_vector_column
from tiltyard.functions.images import MAX_DECODED_SIDE, read_image
from tiltyard.functions.model_files import ModelFiles, digest_files, find_image_model, load_once
from tiltyard.functions.onnx_sessions import gpu_of_task, open_session
from tiltyard.functions.ready_made import Takes, ready_made
from tiltyard.model.refusals import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from PIL.Image import Image

MAX_IMAGES_AT_ONCE = 256
"""Images that a model may be asked to compute at once."""
_SETTINGS = "preprocessor_config.json"
_DEFAULT_SIDE = 224
_VECTORS = ("image_embeds", "pooler_output", "sentence_embedding")
"""Outputs that are vectors of images, by the names that exports of models give them, the best first."""


def _vector_type(*, model: str, normalize: bool, batch_size: int) -> pa.DataType:
    if not 1 <= batch_size <= MAX_IMAGES_AT_ONCE:
        raise RefusedError(f"batch_size is {batch_size}: it is 1 to {MAX_IMAGES_AT_ONCE}.")
    return pa.list_(pa.float32(), _open_model(find_image_model(model)).dimensions)


def _fingerprint(*, model: str, **_: object) -> str:
    return digest_files(find_image_model(model))


@ready_made(
    version=1, takes=Takes.IMAGE, result=_vector_type, result_text="vector of float32, as long as the model's",
    packages=("onnxruntime", "pillow"), fingerprint=_fingerprint,
)  # fmt: skip
def embed_image(images: pa.Array, *, model: str, normalize: bool = True, batch_size: int = 16) -> pa.Array:
    """Compute the vectors of images by a model of ONNX in a local folder, `batch_size` at once.

    Images are prepared as the folder's preprocessor_config.json says; without one they fill the model's size, with
    values from 0 to 1. With `normalize` vectors have the length 1.
    """
    import numpy as np  # noqa: PLC0415  # as models: where they are used

    opened = _open_model(find_image_model(model))
    rows = [row for row, value in enumerate(images.is_valid().to_pylist()) if value]
    vectors = np.full((len(images), opened.dimensions), np.nan, dtype=np.float32)
    for start in range(0, len(rows), batch_size):
        part = rows[start : start + batch_size]
        vectors[part] = opened.encode([read_image(images[row].as_py(), "RGB") for row in part])
    return to_vector_column(vectors, normalize=normalize)


def _open_model(files: ModelFiles) -> _ImageModel:
    """Open a model, once a process. Raises RefusedError for a missing package, and for a file that is no such model."""
    model: _ImageModel = load_once(_ImageModel.open, (files, gpu_of_task()))
    return model


@dataclass(frozen=True, slots=True)
class _ImageModel:
    """A model whose one input are images; of its outputs the vectors of images, or what they are made of."""

    session: Any
    input: str
    output: str
    channels_last: bool
    preparation: _Preparation
    dimensions: int

    @classmethod
    def open(cls, key: tuple[ModelFiles, int | None]) -> _ImageModel:
        """Open the files of a model. Raises RefusedError."""
        files, _ = key
        session = open_session(files.weights)
        inputs, names = session.get_inputs(), [each.name for each in session.get_outputs()]
        shape: Sequence[Any] = inputs[0].shape if len(inputs) == 1 else ()
        if len(shape) != 4 or inputs[0].type != "tensor(float)" or 3 not in (shape[1], shape[3]):
            raise RefusedError(
                f"{files.weights} is no model of images: that has one input of float, of the shape images × 3 × "
                "height × width, or with the 3 at the end."
            )
        channels_last = shape[1] != 3
        height, width = shape[1:3] if channels_last else shape[2:4]
        preparation = _Preparation.of(files.settings(_SETTINGS), height, width)
        output = next((name for name in _VECTORS if name in names), names[0])
        model = cls(session, inputs[0].name, output, channels_last, preparation, 0)
        dimensions = int(model.encode([preparation.black()]).shape[1])
        return cls(session, inputs[0].name, output, channels_last, preparation, dimensions)

    def encode(self, images: Sequence[Image]) -> np.ndarray:
        """Return a row of float32 for each image."""
        import numpy as np  # noqa: PLC0415  # see above

        pixels = np.stack([self.preparation.apply(image) for image in images])
        values = pixels if self.channels_last else np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
        made: np.ndarray = np.asarray(self.session.run([self.output], {self.input: values})[0], dtype=np.float32)
        if made.ndim == 3:  # a vector for each patch, behind one of the whole image
            return made[:, 0]
        if made.ndim == 4:  # a map of features
            made = made.mean(axis=(1, 2) if self.channels_last else (2, 3))
        return made.reshape(len(images), -1)


@dataclass(frozen=True, slots=True)
class _Preparation:
    """How images become a model's input: resized, cut to `size` (width, height), scaled, made alike in their values.

    With `shortest` images are resized until their shorter side has so many pixels; with `exact` to that size, whatever
    their proportions; if it `fits` they fill `size`.
    """

    size: tuple[int, int]
    shortest: int | None
    exact: tuple[int, int] | None
    fits: bool
    resample: int
    scale: float
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def of(cls, settings: Mapping[str, Any], height: object, width: object) -> _Preparation:
        """Read the settings of a model whose input has this height and width, if they are numbers.

        Raises RefusedError for settings that are out of bounds.
        """
        own = tuple(each if isinstance(each, int) and each > 0 else _DEFAULT_SIDE for each in (width, height))
        crops = bool(settings.get("do_center_crop", "crop_size" in settings))
        resizes, wanted = bool(settings.get("do_resize", True)), settings.get("size")
        shortest, exact = None, None
        if resizes and isinstance(wanted, dict) and "shortest_edge" in wanted:
            shortest = _side(wanted["shortest_edge"])
        elif resizes and crops and isinstance(wanted, int):
            shortest = _side(wanted)
        elif resizes:
            exact = _size(wanted)
        fits = resizes and shortest is None and exact is None
        size = (_size(settings.get("crop_size")) if crops else exact) or (own[0], own[1])
        is_scaled = settings.get("do_rescale", True)
        is_alike = settings.get("do_normalize", "image_mean" in settings)
        return cls(
            size,
            shortest,
            exact,
            fits,
            _whole(settings.get("resample", 3), 0, 5, "resample"),
            _number(settings.get("rescale_factor", 1 / 255)) if is_scaled else 1.0,
            _triple(settings.get("image_mean", (0.5, 0.5, 0.5))) if is_alike else (0.0, 0.0, 0.0),
            _triple(settings.get("image_std", (0.5, 0.5, 0.5)), least=1e-6) if is_alike else (1.0, 1.0, 1.0),
        )

    def black(self) -> Image:
        """Return a black image of the size."""
        from PIL import Image  # noqa: PLC0415  # an extra

        return Image.new("RGB", self.size)

    def apply(self, image: Image) -> np.ndarray:
        """Return the pixels of an image, height × width × 3."""
        import numpy as np  # noqa: PLC0415  # see above
        from PIL import Image, ImageOps  # noqa: PLC0415  # an extra

        resample = Image.Resampling(self.resample)
        if self.exact is not None:
            image = image.resize(self.exact, resample)
        elif self.fits:
            image = ImageOps.fit(image, self.size, resample)
        elif self.shortest is not None:
            width, height = _resized(image.size, self.shortest, self.size)
            image = image.resize((width, height), resample)
        left, top = ((image.size[side] - self.size[side]) // 2 for side in (0, 1))
        image = image.crop((left, top, left + self.size[0], top + self.size[1]))  # what it lacks is black
        pixels = np.asarray(image, dtype=np.float32) * np.float32(self.scale)
        mean, deviation = (np.array(values, dtype=np.float32) for values in (self.mean, self.deviation))
        made: np.ndarray = (pixels - mean) / deviation
        return made


def _resized(size: tuple[int, int], shortest: int, cut: tuple[int, int]) -> tuple[int, int]:
    """Return the size with the shorter side so long; of a very long image no more than 64 times that."""
    longest = max(*cut, 64 * shortest)
    width, height = (min(longest, int(side * shortest / min(size))) for side in size)
    return width, height


def _size(value: object) -> tuple[int, int] | None:
    """Return a width and height, by a number or a mapping; None for none. Raises RefusedError for another mapping."""
    if isinstance(value, dict):
        return _side(value.get("width")), _side(value.get("height"))
    return None if value is None else (_side(value), _side(value))


def _side(value: object) -> int:
    return _whole(value, 1, MAX_DECODED_SIDE, "a side of size")


def _whole(value: object, least: int, most: int, name: str) -> int:
    if type(value) is not int or not least <= value <= most:
        raise RefusedError(f"{_SETTINGS}: {name} is {str(value)[:100]}, and has to be {least} to {most}.")
    return value


def _number(value: object, least: float = -1e6) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= 1e6:
        raise RefusedError(f"{_SETTINGS}: {str(value)[:100]} is no number that images are scaled by.")
    return float(value)


def _triple(values: object, least: float = -1e6) -> tuple[float, ...]:
    """Return a number for each of red, green and blue."""
    if not isinstance(values, list | tuple) or len(values) != 3:
        raise RefusedError(f"{_SETTINGS}: image_mean and image_std have three numbers.")
    return tuple(_number(value, least) for value in values)
