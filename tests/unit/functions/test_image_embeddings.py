"""Vectors of images by models of ONNX that are a few operators, computed by ONNX Runtime itself."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from tests.unit.functions.images import picture, saved
from tests.unit.functions.onnx_models import write_means, write_model, write_row_means, write_same
from tiltyard.functions import embed_image, embed_text, list_functions
from tiltyard.functions.onnx_sessions import torch_device
from tiltyard.model.refusals import RefusedError

CLIP = {
    "do_resize": True, "size": {"shortest_edge": 12}, "resample": 2, "do_center_crop": True, "do_rescale": True,
    "crop_size": {"height": 6, "width": 8}, "rescale_factor": 1 / 255, "do_normalize": True,
    "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.25, 0.5],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a model whose vector is the mean of red, of green and of blue, of images of 8 × 6."""
    write_means(tmp_path / "model.onnx")
    return tmp_path


def vector(folder: Path, image: bytes, **options: Any) -> list[float]:
    values: list[float] = embed_image(model=str(folder), normalize=False, **options)(image)
    return values


def red() -> bytes:
    return saved(Image.new("RGB", (20, 20), (255, 0, 51)), "png")


def test_vectors_are_computed_by_the_model_and_have_the_length_1(folder: Path) -> None:
    assert vector(folder, red()) == pytest.approx([1, 0, 0.2])
    function = embed_image(model=str(folder), batch_size=2)
    assert function.result_type == pa.list_(pa.float32(), 3)
    images = pa.array([red(), None, picture(), red(), saved(Image.new("RGB", (9, 9)), "png")])
    computed = function(images)
    assert computed.is_null().to_pylist() == [False, True, False, False, True]  # black has no direction
    assert np.allclose(np.linalg.norm(computed.drop_null().to_pylist(), axis=1), 1)
    assert computed[0] == computed[3] != computed[2]
    with pytest.raises(ValueError, match="the image cannot be read"):
        function(pa.array([b"none"]))
    assert "embed_image" in {each.name for each in list_functions()}


def test_images_are_prepared_as_the_folder_says(folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text(json.dumps(CLIP))
    image = Image.open(io.BytesIO(picture())).convert("RGB")  # 40 × 30
    cut = image.resize((16, 12), Image.Resampling.BILINEAR).crop((4, 3, 12, 9))
    pixels = np.asarray(cut, dtype=np.float32) / 255
    expected = (pixels.mean(axis=(0, 1)) - CLIP["image_mean"]) / CLIP["image_std"]
    assert vector(folder, picture()) == pytest.approx(list(expected), abs=1e-5)
    exact = {"size": {"height": 6, "width": 8}, "do_normalize": False, "do_rescale": False, "resample": 0}
    (folder / "preprocessor_config.json").write_text(json.dumps(exact))
    pixels = np.asarray(image.resize((8, 6), Image.Resampling.NEAREST), dtype=np.float32)
    assert vector(folder, picture()) == pytest.approx(list(pixels.mean(axis=(0, 1))), abs=1e-3)
    small = {"do_resize": False, "crop_size": 6, "do_center_crop": True, "do_normalize": False}
    write_means(folder / "model.onnx", "height", "width")
    (folder / "preprocessor_config.json").write_text(json.dumps(small))
    half = saved(Image.new("RGB", (3, 6), (255, 255, 255)), "png")  # what it lacks is black
    assert vector(folder, half, batch_size=1) == pytest.approx([0.5, 0.5, 0.5])


def test_outputs_of_other_shapes_become_vectors(tmp_path: Path) -> None:
    write_same(tmp_path / "model.onnx")
    assert vector(tmp_path, red()) == pytest.approx([1, 0, 0.2])  # of a map of features, the mean of each
    (tmp_path / "model.onnx").unlink()
    (tmp_path / "onnx").mkdir()
    write_row_means(tmp_path / "onnx/model.onnx")
    assert vector(tmp_path, red()) == pytest.approx([1, 1, 1, 1])  # of patches, the first


def test_other_files_are_another_function(folder: Path) -> None:
    function = embed_image(model=str(folder))
    (folder / "preprocessor_config.json").write_text(json.dumps(CLIP))
    assert embed_image(model=str(folder)).digest != function.digest
    with pytest.raises(RefusedError, match="made with other files"):
        function.setup()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "a side of size is 0, and has to be 1 to 1024"),
        ({"size": 5000}, "a side of size is 5000"),
        ({"size": {"shortest_edge": "1"}}, "a side of size is 1"),
        ({"resample": 9}, "resample is 9"),
        ({"image_mean": [1, 2]}, "three numbers"),
        ({"image_mean": [0, 0, 0], "image_std": [0, 1, 1]}, "no number that images are scaled by"),
        ({"rescale_factor": "1"}, "no number that images are scaled by"),
        (None, "is no JSON"),
    ],
)
def test_settings_out_of_bounds_are_refused(folder: Path, settings: dict[str, Any] | None, message: str) -> None:
    (folder / "preprocessor_config.json").write_text("{" if settings is None else json.dumps(settings))
    with pytest.raises(RefusedError, match=message):
        embed_image(model=str(folder))


def test_what_is_no_model_of_images_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for batch_size in (0, 257):
        with pytest.raises(RefusedError, match=f"batch_size is {batch_size}: it is 1 to 256"):
            embed_image(model=str(folder), batch_size=batch_size)
    with pytest.raises(RefusedError, match=r"the absolute path of a folder with model\.onnx"):
        embed_image(model="clip")
    write_model(folder / "model.onnx", ("n", 7), [], {"pixel_values": ("n", 7)})
    with pytest.raises(RefusedError, match="is no model of images"):
        embed_image(model=str(folder))
    (folder / "model.onnx").write_bytes(b"none")
    with pytest.raises(RefusedError, match="cannot be opened"):
        embed_image(model=str(folder))
    (folder / "model.onnx").unlink()
    with pytest.raises(RefusedError, match="has no model of images"):
        embed_image(model=str(folder))
    write_means(folder / "model.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(RefusedError, match="onnxruntime, which is not installed here"):
        embed_image(model=str(folder))


def in_task(monkeypatch: pytest.MonkeyPatch, *gpus: str) -> None:
    """Let this be a task of Spark, with GPUs that are reserved for it."""
    resources = {"gpu": SimpleNamespace(addresses=list(gpus))} if gpus else {}
    context = SimpleNamespace(get=lambda: SimpleNamespace(resources=lambda: resources))
    monkeypatch.setitem(sys.modules, "pyspark.taskcontext", SimpleNamespace(TaskContext=context))


def test_models_run_on_the_gpu_that_spark_has_reserved_and_else_on_cpus(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_task(monkeypatch)
    assert torch_device() == "cpu" and vector(folder, red()) == pytest.approx([1, 0, 0.2])
    in_task(monkeypatch, "3", "4")
    assert torch_device() == "cuda:3"
    for function, model in ((embed_image, folder), (embed_text, folder)):
        (folder / "tokenizer.json").write_text("{}")
        with pytest.raises(RefusedError, match="install onnxruntime-gpu instead, or leave the resource gpu out"):
            function(model=str(model))
    real, asked = sys.modules["onnxruntime"], list[Any]()

    def open_on_cpu(weights: str, options: Any, providers: list[Any]) -> Any:
        asked.append(providers)
        return real.InferenceSession(weights, options, providers=providers[1:])  # there is no GPU here

    fake = SimpleNamespace(
        __spec__=real.__spec__,
        SessionOptions=real.SessionOptions,
        InferenceSession=open_on_cpu,
        get_available_providers=lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"],
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", fake)
    assert vector(folder, red()) == pytest.approx([1, 0, 0.2])
    assert asked == [[("CUDAExecutionProvider", {"device_id": 3}), "CPUExecutionProvider"]]
