"""The mounts of one process: which there are (`mounts`), and how the other catalog of each is called (`mount`)."""
