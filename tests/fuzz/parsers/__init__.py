"""Parsers of callers' bytes, each with its property, and coverage-guided fuzzing of them (`make fuzz`)."""
