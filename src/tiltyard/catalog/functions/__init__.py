"""Functions of clients and the secrets that they name: registered here, executed in Spark's workers alone."""
