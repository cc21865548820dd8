"""Small models of images in the format of ONNX, written byte by byte: its own package is not needed for that."""

from __future__ import annotations

from pathlib import Path

_FLOAT = 1


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _field(number: int, value: int | bytes | str) -> bytes:
    """A field of a message of protobuf: a number, or bytes (a text, a message)."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _value(name: str, shape: tuple[int | str, ...]) -> bytes:
    """The description of an input or output: floats of this shape, whose sizes may be names."""
    dimensions = b"".join(_field(1, _field(1 if isinstance(size, int) else 2, size)) for size in shape)
    tensor = _field(1, _FLOAT) + _field(2, dimensions)
    return _field(1, name) + _field(2, _field(1, tensor))


def _node(operator: str, source: str, target: str, **attributes: int | list[int]) -> bytes:
    """An operator on one tensor; attributes are whole numbers, or lists of such."""
    encoded = b""
    for name, value in attributes.items():
        is_list = isinstance(value, list)
        values = b"".join(_field(8, each) for each in value) if isinstance(value, list) else _field(3, value)
        encoded += _field(5, _field(1, name) + values + _field(20, 7 if is_list else 2))
    return _field(1, source) + _field(2, target) + _field(4, operator) + encoded


def write_model(
    file: Path, shape: tuple[int | str, ...], nodes: list[bytes], outputs: dict[str, tuple[int | str, ...]]
) -> None:
    """Write a model of one input, `pixel_values`."""
    graph = b"".join(_field(1, node) for node in nodes) + _field(2, "model") + _field(11, _value("pixel_values", shape))
    graph += b"".join(_field(12, _value(name, each)) for name, each in outputs.items())
    file.write_bytes(_field(1, 8) + _field(7, graph) + _field(8, _field(1, "") + _field(2, 13)))


def write_means(file: Path, height: int | str = 6, width: int | str = 8) -> None:
    """Write a model whose vector is the mean of red, of green and of blue; its first output are the maxima."""
    nodes = [
        _node("GlobalMaxPool", "pixel_values", "maxima"),
        _node("GlobalAveragePool", "pixel_values", "pooled"),
        _node("Flatten", "pooled", "image_embeds", axis=1),
    ]
    write_model(file, ("n", 3, height, width), nodes, {"maxima": ("n", 3, 1, 1), "image_embeds": ("n", 3)})


def write_same(file: Path) -> None:
    """Write a model that returns its pixels, 2 × 2, channels last."""
    write_model(file, ("n", 2, 2, 3), [_node("Identity", "pixel_values", "out")], {"out": ("n", 2, 2, 3)})


def write_row_means(file: Path) -> None:
    """Write a model of vectors for patches: for red, green and blue, the means of the rows of an image of 4 × 4."""
    mean = _node("ReduceMean", "pixel_values", "last_hidden_state", axes=[3], keepdims=0)
    write_model(file, ("n", 3, 4, 4), [mean], {"last_hidden_state": ("n", 3, 4)})
