"""How operations run: on the event loop, in thread pools, in batches, once for each idempotency key."""
