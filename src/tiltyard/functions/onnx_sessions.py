"""Sessions of ONNX Runtime, and the GPU that Spark has reserved for a task: a model runs on it, and else on CPUs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from tiltyard.functions.model_files import import_package
from tiltyard.model.refusals import RefusedError

if TYPE_CHECKING:
    from pathlib import Path

_CUDA = "CUDAExecutionProvider"


def open_session(weights: Path) -> Any:
    """Open a model in ONNX Runtime. Raises RefusedError for a missing package, one without GPU, and a broken file."""
    runtime: Any = import_package("onnxruntime", "onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS") or 0)  # Spark sets it: a task's share
    providers: list[Any] = ["CPUExecutionProvider"]
    if (gpu := gpu_of_task()) is not None:
        if _CUDA not in runtime.get_available_providers():
            raise RefusedError(
                "Spark has reserved a GPU for the task, which the package onnxruntime that is installed there cannot "
                "use: install onnxruntime-gpu instead, or leave the resource gpu out."
            )
        providers = [(_CUDA, {"device_id": gpu}), *providers]
    try:
        return runtime.InferenceSession(str(weights), options, providers=providers)
    except Exception as error:  # the package's errors have no class in common
        raise RefusedError(f"{weights} cannot be opened: {error}.") from error


def gpu_of_task() -> int | None:
    """Return the number of the GPU that Spark has reserved for the task which runs here; None without one."""
    resources = _task_resources() or {}
    addresses = resources["gpu"].addresses if "gpu" in resources else []
    return int(addresses[0]) if addresses else None


def torch_device() -> str | None:
    """Return the device of PyTorch: within a task of Spark that which is reserved; None, its own choice, elsewhere."""
    if _task_resources() is None:
        return None
    gpu = gpu_of_task()
    return "cpu" if gpu is None else f"cuda:{gpu}"


def _task_resources() -> dict[str, Any] | None:
    """Return the resources of the task of Spark which runs here; None outside of any."""
    module = sys.modules.get("pyspark.taskcontext")  # a process that runs tasks has imported it
    context = None if module is None else module.TaskContext.get()
    return None if context is None else dict(context.resources())
