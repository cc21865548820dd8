"""Discover the files of a source, infer and merge their schemas, split them into pieces for tasks, and read them."""
