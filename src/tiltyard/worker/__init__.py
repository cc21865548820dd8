"""The worker: run queued transactions and jobs of the pipeline, and clean up what crashes left."""

from tiltyard.worker.drivers import DriverPool
from tiltyard.worker.process_record import ProcessRecorder
from tiltyard.worker.runner import Worker

__all__ = ["DriverPool", "ProcessRecorder", "Worker"]
