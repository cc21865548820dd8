"""The test suites of other projects, from their own sources, against a running server."""
