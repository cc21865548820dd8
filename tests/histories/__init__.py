"""Histories of several servers under faults, judged by porcupine, of others, and by cycles of what was read."""
