"""Sources of a job: find files, infer and merge their schemas, split them into tasks, read them."""
