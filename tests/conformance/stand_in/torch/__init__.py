"""Stand in for torch where its wheel (with CUDA, 6 GB installed) is too large: what loads data, and no tensors.

`utils.data` has the protocol of PyTorch's DataLoader. A process that finds this package before the real one
(PYTHONPATH) can import `lancedb.streaming`, and iterate over it with workers; what needs tensors (`pack_sequences`, the
formats "torch…") needs the real one.
"""

from typing import Any

STAND_IN = True
Tensor = type("Tensor", (), {})
__version__ = "a stand-in"


def __getattr__(name: str) -> Any:
    raise AttributeError(f"torch.{name}: this is a stand-in for torch, with torch.utils.data alone.")
