"""Pictures for tests, made by Pillow."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image


def picture(width: int = 40, height: int = 30, form: str = "png", **options: Any) -> bytes:
    """A picture with a slope of colours and a dark corner."""
    image = Image.new("RGB", (width, height))
    image.putdata(
        [
            (255 * x // width, 255 * y // height, 0 if x < width // 3 and y < height // 3 else 128)
            for y in range(height)
            for x in range(width)
        ]
    )
    return saved(image, form, **options)


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    """An image as the bytes of a file."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()
