"""Driver processes, which run jobs for a worker under a lease."""
