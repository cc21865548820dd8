"""Stand in for torch where its wheel (with CUDA, 6 GB installed) is too large: what loads data, and next to no tensors.

`utils.data` has the protocol of PyTorch's DataLoader. A process that finds this package before the real one
(PYTHONPATH) can import `lancedb.streaming`, and iterate over it with workers; what computes with tensors
(`pack_sequences`, lancedb's formats "torch…") needs the real one. A tensor here has the array that it was made of.
"""

from dataclasses import dataclass
from typing import Any

STAND_IN = True


@dataclass(frozen=True)
class Tensor:
    """A tensor that only holds an array."""

    array: Any

    def numpy(self) -> Any:
        """Return the array."""
        return self.array


def from_numpy(array: Any) -> Tensor:
    """Return an array of numbers, which may be written, as a tensor. Raises TypeError for any other one."""
    if array.dtype.kind not in "biuf" or not array.flags.writeable:
        raise TypeError(f"no tensor has {array.dtype}, or is read-only")
    return Tensor(array)


__version__ = "a stand-in"


def __getattr__(name: str) -> Any:
    raise AttributeError(f"torch.{name}: this is a stand-in for torch, with torch.utils.data alone.")
