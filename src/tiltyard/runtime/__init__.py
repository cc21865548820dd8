"""Process-level building blocks: clocks, failpoints, memory, threads, batching, lazy imports, the log of outages."""
