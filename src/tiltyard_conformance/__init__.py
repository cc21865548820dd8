"""Conformance of a server with the Lance REST Namespace specification, seen by the clients that people use.

It needs a server's URL alone (`tiltyard-conformance URL`), calls each operation with a case of its own, and prints what
came of it. The cases make namespaces and tables of their own, and leave them there.
"""
