"""Run registered functions: a process for each in a Spark worker, with the environment that the function asks for."""
