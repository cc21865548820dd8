"""Schedules: jobs that queue themselves, at times or after commits; the operations on them, and what runs due ones."""
