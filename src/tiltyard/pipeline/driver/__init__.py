"""Driver processes: run jobs for a worker, under a lease."""
