"""Read images: what they are, their pixels, smaller ones, and hashes by which images that look alike are found.

An image is read once its header says that it has no more pixels than MAX_IMAGE_PIXELS: a small file may claim to be a
very large one. The row of one that cannot be read fails.
"""

from __future__ import annotations

import io
import struct
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tiltyard.functions.ready_made import Takes, map_values, ready_made
from tiltyard.model.refusals import RefusedError

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

MAX_IMAGE_PIXELS = 64_000_000
"""Pixels of an image that is read."""
MAX_DECODED_SIDE = 1024
"""Pixels of a side of an image as a column of pixels has it."""
MAX_RESIZED_SIDE = 8192
"""Pixels of a side of a smaller image."""

_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
_SAVED = ("jpeg", "png", "webp")
_DESCRIPTION = pa.struct(
    [("format", pa.string()), ("width", pa.int32()), ("height", pa.int32()), ("mode", pa.string())]
)
_HASH_SIDE, _HASHED_SIDE = 8, 32


def _check_side(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise RefusedError(f"{name} is {value}: it is 1 to {most}.")


def _pixels_type(*, width: int, height: int) -> pa.DataType:
    _check_side("width", width, MAX_DECODED_SIDE)
    _check_side("height", height, MAX_DECODED_SIDE)
    return pa.list_(pa.uint8(), width * height * 3)


def _resized_type(*, width: int, height: int, format: str, quality: int) -> pa.DataType:  # noqa: A002  # the argument's name
    _check_side("width", width, MAX_RESIZED_SIDE)
    _check_side("height", height, MAX_RESIZED_SIDE)
    if format not in _SAVED:
        raise RefusedError(f"format is '{format[:100]}': it is {', '.join(_SAVED)}.")
    if not 1 <= quality <= 100:
        raise RefusedError(f"quality is {quality}: it is 1 to 100.")
    return pa.binary()


@ready_made(
    version=1, takes=Takes.IMAGE, result=lambda: _DESCRIPTION, result_text="format, width, height, mode",
    packages=("pillow",),
)  # fmt: skip
def describe_image(images: pa.Array) -> pa.Array:
    """Say of which format, size and mode images are, from their headers alone."""

    def describe(data: bytes) -> dict[str, Any]:
        image = _open(data)
        return {"format": str(image.format).lower(), "width": image.width, "height": image.height, "mode": image.mode}

    return map_values(images, _DESCRIPTION, describe)


@ready_made(
    version=1, takes=Takes.IMAGE, result=_pixels_type, result_text="uint8[width × height × 3]", packages=("pillow",)
)
def decode_image(images: pa.Array, *, width: int = 224, height: int = 224) -> pa.Array:
    """Decode images to pixels of one size: rows from the top, red, green, blue of each; what sticks out is cut off."""
    import numpy as np  # noqa: PLC0415  # where it is used
    from PIL import Image, ImageOps  # noqa: PLC0415  # an extra

    length = width * height * 3
    pixels = np.zeros((len(images), length), dtype=np.uint8)
    for row, data in enumerate(images.to_pylist()):
        if data is not None:
            fitted = ImageOps.fit(read_image(data, "RGB"), (width, height), Image.Resampling.LANCZOS)
            pixels[row] = np.asarray(fitted).ravel()
    return pa.FixedSizeListArray.from_arrays(pa.array(pixels.ravel()), length, mask=images.is_null())


@ready_made(version=1, takes=Takes.IMAGE, result=_resized_type, result_text="bytes", packages=("pillow",))
def resize_image(
    images: pa.Array, *, width: int = 512, height: int = 512, format: str = "jpeg", quality: int = 85  # noqa: A002  # Pillow's own
) -> pa.Array:  # fmt: skip
    """Make images smaller, so that they fit into `width` and `height`, in their proportions; none is enlarged.

    They are saved as jpeg, png or webp, without what cameras write into them (place, time).
    """
    from PIL import Image  # noqa: PLC0415  # an extra

    def resize(data: bytes) -> bytes:
        image = read_image(data, "RGB" if format == "jpeg" else "RGBA" if _has_alpha(_open(data)) else "RGB")
        image.thumbnail((width, height), Image.Resampling.LANCZOS)
        saved = io.BytesIO()
        image.save(saved, format, **({} if format == "png" else {"quality": quality}))
        return saved.getvalue()

    return map_values(images, pa.binary(), resize)


@ready_made(version=1, takes=Takes.IMAGE, result=pa.int64, result_text="int64", packages=("pillow",))
def hash_image(images: pa.Array) -> pa.Array:
    """Compute perceptual hashes of 64 bits: of images that look alike, few bits differ (`bit_count(a ^ b)`).

    Each bit says whether one of the 64 lowest frequencies of the image in grey is above their median.
    """
    return map_values(images, pa.int64(), _perceptual_hash)


def _perceptual_hash(data: bytes) -> int:
    import numpy as np  # noqa: PLC0415  # where it is used
    from PIL import Image  # noqa: PLC0415  # an extra

    small = read_image(data, "L").resize((_HASHED_SIDE, _HASHED_SIDE), Image.Resampling.LANCZOS)
    waves = _cosines()
    frequencies = waves @ np.asarray(small, dtype=np.float64) @ waves.T
    lowest = np.round(frequencies[:_HASH_SIDE, :_HASH_SIDE].ravel(), 6)
    bits = lowest > np.median(lowest[1:])  # the first is the mean brightness, and would move the median
    return int.from_bytes(np.packbits(bits).tobytes(), "big", signed=True)


@cache
def _cosines() -> np.ndarray:
    """Return the matrix of the discrete cosine transform (II) for rows of a hashed image."""
    import numpy as np  # noqa: PLC0415  # where it is used

    positions = np.arange(_HASHED_SIDE)
    matrix: np.ndarray = np.cos(np.pi * np.outer(positions, positions + 0.5) / _HASHED_SIDE)
    return matrix


def _open(data: bytes) -> Image:
    """Read the header of an image. Raises ValueError if it is none, or has too many pixels."""
    import warnings  # noqa: PLC0415  # beside Pillow

    from PIL import Image  # noqa: PLC0415  # an extra

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the bound below is lower
            image = Image.open(io.BytesIO(data), formats=_FORMATS)
    except Image.DecompressionBombError as error:
        raise ValueError(f"the image has more than {MAX_IMAGE_PIXELS} pixels") from error
    except (OSError, SyntaxError, ValueError, struct.error, TypeError) as error:
        raise ValueError(f"the image cannot be read: {_described(error)}") from error
    if image.width * image.height > MAX_IMAGE_PIXELS:
        raise ValueError(
            f"the image has {image.width} × {image.height} pixels, and {MAX_IMAGE_PIXELS} at most are read"
        )
    return image


def _described(error: Exception) -> str:
    text = str(error)
    return "it is none of a known format" if "cannot identify" in text else text[:200] or type(error).__name__


def read_image(data: bytes, mode: str) -> Image:
    """Read an image, the way up that its camera says. Raises ValueError if it cannot be read."""
    from PIL import ImageOps  # noqa: PLC0415  # an extra

    image = _open(data)
    try:
        return ImageOps.exif_transpose(image).convert(mode)
    except (OSError, SyntaxError, ValueError, struct.error, EOFError, TypeError, IndexError) as error:
        raise ValueError(f"the image cannot be read: {_described(error)}") from error


def _has_alpha(image: Image) -> bool:
    return "A" in image.mode or "transparency" in image.info
