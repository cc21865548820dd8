"""`python -m tiltyard`."""

from tiltyard.cli import main

main()
