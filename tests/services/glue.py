"""What Glue documents and moto leaves out: pages, names in lower case, and changes on the version that was read."""

from __future__ import annotations

GLUE_AS_DOCUMENTED = """
from moto.core.responses import ActionResult
from moto.glue.exceptions import GlueClientError
from moto.glue.responses import GlueResponse

def in_pages(method, key):
    def page(self):
        start, size = int(self.parameters.get("NextToken") or 0), self.parameters.get("MaxResults") or 100
        entries = sorted(method(self).result[key], key=lambda entry: entry["Name"])
        rest = {"NextToken": str(start + size)} if start + size < len(entries) else {}
        return ActionResult({key: entries[start : start + size], **rest})
    return page

def folded(method):
    def call(self):
        inner = (self.parameters.get(key) or {} for key in ("TableInput", "DatabaseInput"))
        for parameters in (self.parameters, *inner):
            for key in parameters.keys() & {"Name", "DatabaseName"}:
                parameters[key] = parameters[key].lower()
        return method(self)
    return call

def on_version(method):
    def update(self):
        wanted = self.parameters.get("VersionId")
        name = self.parameters["TableInput"]["Name"]
        current = self.glue_backend.get_table(self.parameters["DatabaseName"], name).as_dict()["VersionId"]
        if wanted not in (None, current):
            raise GlueClientError("ConcurrentModificationException", "another version")
        return method(self)
    return update

GlueResponse.get_databases = in_pages(GlueResponse.get_databases, "DatabaseList")
GlueResponse.get_tables = in_pages(GlueResponse.get_tables, "TableList")
GlueResponse.update_table = on_version(GlueResponse.update_table)
for name in ("create", "get", "update", "delete"):
    for kind in ("table", "database"):
        setattr(GlueResponse, f"{name}_{kind}", folded(getattr(GlueResponse, f"{name}_{kind}")))
"""
"""Runs in moto's process before its server does (`s3_server(patch=…)`)."""
