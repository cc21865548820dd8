"""`tiltyard mcp`: a catalog for assistants, by the Model Context Protocol: tools that look, search and query.

`tools` are what an assistant can call, `bounded_answers` what it gets, `protocol` how both travel.
"""
