"""Histories of several servers under faults, judged by porcupine, a checker of linearizability written by others."""
