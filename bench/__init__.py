"""Tiltyard measured against pylance's own REST server, on one machine, in one run: `python -m bench --help`."""
