"""Requests with an idempotency key: run once, and answered from the record when they are repeated."""
