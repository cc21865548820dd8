"""The worker: runs queued transactions, and sweeps up what a crash left behind."""

from tiltyard.worker.drivers import Drivers
from tiltyard.worker.runner import Worker

__all__ = ["Drivers", "Worker"]
