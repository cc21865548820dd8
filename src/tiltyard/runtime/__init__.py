"""What every process needs of Python and the system: clocks, failpoints, memory, lazy imports, logs of outages."""
