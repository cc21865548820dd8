"""Work that outlives its request: transactions, jobs that drivers run, and what happened to them."""
