"""Read tables on object stores from copies in a folder of this machine, exact to the version and within a budget."""
