"""A loader that PyTorch's DataLoader takes as what is iterated over. Imported where PyTorch is."""

from __future__ import annotations

from torch.utils.data import IterableDataset  # type: ignore[import-not-found]  # not installed with this package

from tiltyard.lake.training.loader import Loader


class TorchLoader(Loader, IterableDataset):  # type: ignore[misc]  # of a class without types
    """A loader for `DataLoader(loader, batch_size=None, num_workers=…)`, whose workers read a share of it each."""
