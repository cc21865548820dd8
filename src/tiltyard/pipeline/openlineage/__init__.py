"""Events of OpenLineage for the runs of jobs: what they read and wrote, by the package `openlineage-python`."""
