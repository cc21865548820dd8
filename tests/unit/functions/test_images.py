"""Functions of images, on pictures that Pillow makes, and on files that are none, or claim too much."""

from __future__ import annotations

import io
import struct
import zlib
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image, ImageEnhance

from tests.unit.functions.images import picture, saved
from tiltyard.functions import ReadyMade, decode_image, describe_image, hash_image, resize_image


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def claiming(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims to be of this size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("form", ["png", "jpeg", "webp", "gif", "bmp", "tiff"])
def test_images_of_each_format_are_described_and_read(form: str) -> None:
    described = describe_image(picture(form=form))
    assert (described["format"], described["width"], described["height"]) == (form, 40, 30)
    assert len(decode_image(width=8, height=6)(picture(form=form))) == 8 * 6 * 3


def test_pixels_are_those_that_pillow_reads() -> None:
    pixels = decode_image(width=40, height=30)(pa.array([picture(), None, picture(form="bmp")]))
    assert pixels.null_count == 1 and pixels[0] == pixels[2]
    assert np.array_equal(np.array(pixels[0].as_py()).reshape(30, 40, 3), np.asarray(opened(picture())))


def test_images_are_made_smaller_in_their_proportions_and_none_larger() -> None:
    smaller = opened(resize_image(width=20, height=20, format="png")(picture()))
    assert (smaller.size, smaller.format) == ((20, 15), "PNG")
    assert opened(resize_image(picture())).size == (40, 30)
    clear = Image.new("RGBA", (9, 9), (1, 2, 3, 0))
    assert opened(resize_image(format="webp")(saved(clear, "png"))).mode == "RGBA"
    assert opened(resize_image(saved(clear, "png"))).mode == "RGB"


def test_an_image_is_turned_as_its_camera_says_and_loses_what_the_camera_wrote() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn to the right
    turned = opened(resize_image(picture(form="jpeg", exif=exif.tobytes())))
    assert turned.size == (30, 40) and not turned.getexif()


def test_hashes_of_like_images_differ_in_few_bits() -> None:
    original = opened(picture(400, 300))
    like = [original.resize((200, 150)), ImageEnhance.Brightness(original).enhance(0.8), original.convert("L")]
    noise = Image.fromarray(np.random.default_rng(7).integers(0, 255, (300, 400, 3), dtype=np.uint8))
    first, *others, other = hash_image(pa.array([saved(each, "png") for each in (original, *like, noise)])).to_pylist()
    assert max(distance(first, each) for each in others) <= 10
    assert distance(first, other) >= 20


def distance(left: int, right: int) -> int:
    return ((left ^ right) & (1 << 64) - 1).bit_count()


@pytest.mark.parametrize("function", [describe_image, decode_image, resize_image, hash_image], ids=str)
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cannot be read: it is none of a known format"),
        (b"<svg/>", "cannot be read: it is none of a known format"),
        (claiming(60_000, 60_000), "the image has (60000 × 60000|more than 64000000) pixels"),
        (claiming(9_000, 9_000), "the image has 9000 × 9000 pixels, and 64000000 at most are read"),
    ],
    ids=["empty", "other", "bomb", "large"],
)
def test_what_is_no_image_or_too_large_a_one_fails(function: ReadyMade, data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(pa.array([data]))


@pytest.mark.parametrize("function", [decode_image, resize_image, hash_image], ids=str)
@pytest.mark.parametrize("form", ["png", "jpeg", "webp", "gif", "bmp", "tiff"])
def test_cut_images_fail_by_a_value_error_or_are_read_as_far_as_they_go(function: ReadyMade, form: str) -> None:
    whole = picture(form=form)
    for length in range(1, len(whole), max(1, len(whole) // 12)):
        with suppress(ValueError):  # any other error is one of the code
            function(pa.array([whole[:length]]))
