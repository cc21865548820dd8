"""Calls of operations by their names: by HTTP, or in this process. Commands, jobs, tools and tests take either."""
