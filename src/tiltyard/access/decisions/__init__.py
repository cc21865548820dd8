"""Decisions of services outside, which narrow what the server's own rights allow. See docs/decisions.md."""
