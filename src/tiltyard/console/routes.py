"""The pages of the console: each address, and the function that makes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiltyard.console import sign_in
from tiltyard.console.access import (
    approvals,
    audit,
    erasures,
    grants,
    keys,
    policies,
    principals,
    quotas,
    roles,
    see_as,
)
from tiltyard.console.browse import find, sample, tree
from tiltyard.console.jobs import job, schedules, start
from tiltyard.console.map import page as map_page
from tiltyard.console.monitor import events, server, storage
from tiltyard.console.navigation import TABLE_TABS
from tiltyard.console.objects import create, dropped, indexes, manage
from tiltyard.console.sql_editor import completion
from tiltyard.console.sql_editor import page as sql_page
from tiltyard.console.table import cells, counts, downloads, lineage, overview, rows, search
from tiltyard.console.upload import page as upload
from tiltyard.console.upload import run as upload_run
from tiltyard.console.upload.receiving import MAX_FILE_BYTES, MAX_SAMPLE_BYTES
from tiltyard.console.versions import comparison, timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.console.page import PageRequest


@dataclass(frozen=True, slots=True)
class PageRoute:
    """A page: `view` is the first part of its address behind `/console`.

    `function` makes it of a `PageRequest`, in a thread; `sign_in` makes the pages before there is a principal. With
    `names_object` the id of a table or a namespace follows the view. `tab` is the tab of tables that the page is below.
    A page with `permit` takes a file of up to `file_bytes` behind its form: that is called before the file comes.
    """

    view: str
    function: Callable[[PageRequest], Any] | None = None
    method: str = "GET"
    names_object: bool = False
    sign_in: Callable[..., Any] | None = None
    tab: str = ""
    permit: Callable[[PageRequest], None] | None = None
    file_bytes: int = 0

    @property
    def is_table(self) -> bool:
        """Whether the object is a table."""
        return any(tab.view == (self.tab or self.view) for tab in TABLE_TABS)

    @property
    def address(self) -> str:
        """The pattern of the address, for Starlette."""
        return f"/console/{self.view}" + ("/{id:path}" if self.names_object else "")


ROUTES = (
    PageRoute("", tree.show_namespace),
    PageRoute("sign-in", method="GET", sign_in=sign_in.show),
    PageRoute("sign-in", method="POST", sign_in=sign_in.by_key),
    PageRoute("sign-out", method="POST", sign_in=sign_in.end),
    PageRoute("sign-in/{provider}", method="GET", sign_in=sign_in.at_provider),
    PageRoute("sign-in/{provider}/callback", method="GET", sign_in=sign_in.from_provider),
    PageRoute("namespace", tree.show_namespace, names_object=True),
    PageRoute("tree", tree.show_level, names_object=True),
    PageRoute("tree", tree.show_level),
    PageRoute("sample", sample.load, method="POST"),
    PageRoute("sample", sample.load, method="POST", names_object=True),
    PageRoute("find", find.show),
    PageRoute("summary", tree.show_summary, names_object=True),
    PageRoute("table", overview.show, names_object=True),
    PageRoute("freshness", overview.show_missing, names_object=True),
    PageRoute("lineage", lineage.show, names_object=True),
    PageRoute("rows", rows.show, names_object=True),
    PageRoute("condition", rows.show_condition, names_object=True, tab="rows"),
    PageRoute("counts", counts.show, names_object=True, tab="rows"),
    PageRoute("facets", counts.show_facets, names_object=True, tab="rows"),
    PageRoute("search", search.show, names_object=True),
    PageRoute("map", map_page.show, names_object=True),
    PageRoute("map-points", map_page.show_points, names_object=True, tab="map"),
    PageRoute("map-row", map_page.show_row, names_object=True, tab="map"),
    PageRoute("sql", sql_page.show),
    PageRoute("sql", sql_page.run, method="POST"),
    PageRoute("sql", sql_page.show, names_object=True, tab="table"),
    PageRoute("sql-download", sql_page.download, method="POST"),
    PageRoute("sql-names", completion.list_tables),
    PageRoute("sql-columns", completion.list_columns, names_object=True, tab="table"),
    PageRoute("versions", timeline.show, names_object=True),
    PageRoute("versions", timeline.act, method="POST", names_object=True),
    PageRoute("restore", timeline.ask_restore, names_object=True, tab="versions"),
    PageRoute("compare", comparison.show, names_object=True, tab="versions"),
    PageRoute("branch", timeline.compare_branch, names_object=True, tab="versions"),
    PageRoute("cell", cells.show, names_object=True),
    PageRoute("bytes", cells.send, names_object=True),
    PageRoute("download", downloads.send, names_object=True),
    PageRoute("create-table", create.show_table),
    PageRoute("create-table", create.show_table, names_object=True),
    PageRoute("create-table", create.create_table, method="POST"),
    PageRoute("create-table", create.create_table, method="POST", names_object=True),
    PageRoute("create-namespace", create.show_namespace),
    PageRoute("create-namespace", create.show_namespace, names_object=True),
    PageRoute("create-namespace", create.create_namespace, method="POST"),
    PageRoute("create-namespace", create.create_namespace, method="POST", names_object=True),
    PageRoute("drop-namespace", dropped.ask_namespace, names_object=True),
    PageRoute("drop-namespace", dropped.drop_namespace, method="POST", names_object=True),
    PageRoute("dropped", dropped.show),
    PageRoute("dropped", dropped.act, method="POST"),
    PageRoute("indexes", indexes.show, names_object=True),
    PageRoute("indexes", indexes.act, method="POST", names_object=True),
    PageRoute("manage", manage.show, names_object=True),
    PageRoute("manage", manage.act, method="POST", names_object=True),
    PageRoute("upload", upload.show),
    PageRoute("upload", upload.show, names_object=True),
    PageRoute("upload-into", upload.show_into, names_object=True, tab="table"),
    *(
        PageRoute(view, function, "POST", names_object, tab=tab, permit=permit, file_bytes=most)
        for view, function, permit, most, names_object, tab in (
            ("upload", upload_run.run, upload_run.permit, MAX_FILE_BYTES, False, ""),
            ("upload", upload_run.run, upload_run.permit, MAX_FILE_BYTES, True, ""),
            ("upload-into", upload_run.run_into, upload_run.permit_into, MAX_FILE_BYTES, True, "table"),
            ("upload-sample", upload.sample, upload_run.permit, MAX_SAMPLE_BYTES, False, ""),
            ("upload-sample", upload.sample, upload_run.permit, MAX_SAMPLE_BYTES, True, ""),
            ("upload-into-sample", upload.sample_into, upload_run.permit_into, MAX_SAMPLE_BYTES, True, "table"),
        )
    ),
    PageRoute("policies", policies.show, names_object=True),
    PageRoute("policies", policies.act, method="POST", names_object=True),
    PageRoute("see-as", see_as.show, names_object=True, tab="policies"),
    PageRoute("access", principals.show),
    PageRoute("access", principals.act, method="POST"),
    PageRoute("access/principal", principals.show_one),
    PageRoute("access/keys", keys.show),
    PageRoute("access/keys", keys.act, method="POST"),
    PageRoute(keys.NEW_KEY, keys.show_new),
    PageRoute("access/roles", roles.show),
    PageRoute("access/roles", roles.act, method="POST"),
    PageRoute("access/grants", grants.show),
    PageRoute("access/grants", grants.show, names_object=True),
    PageRoute("access/grants", grants.act, method="POST"),
    PageRoute("access/grants", grants.act, method="POST", names_object=True),
    PageRoute(approvals.VIEW, approvals.show),
    PageRoute(approvals.VIEW, approvals.act, method="POST"),
    PageRoute(erasures.VIEW, erasures.show),
    PageRoute("access/erasure", erasures.show_one),
    PageRoute(quotas.VIEW, quotas.show),
    PageRoute(quotas.VIEW, quotas.act, method="POST"),
    PageRoute(quotas.EXPORT, quotas.export),
    PageRoute("audit", audit.show),
    PageRoute("audit/chart", audit.show_chart),
    PageRoute("audit/export", audit.export),
    PageRoute("events", events.show),
    PageRoute("events", events.act, method="POST"),
    PageRoute("events/changes", events.follow),
    PageRoute("events/dead-letters", events.show_letters),
    PageRoute("server", server.show),
    PageRoute("server", server.act, method="POST"),
    PageRoute("server/storage", storage.show),
    PageRoute("jobs", job.show_jobs),
    PageRoute("jobs/start", start.show),
    PageRoute("jobs/start", start.submit, method="POST"),
    PageRoute("jobs/schedules", schedules.show),
    PageRoute("jobs/schedules", schedules.act, method="POST"),
    PageRoute("job", job.show),
    PageRoute("job", job.act, method="POST"),
    PageRoute("job/changes", job.follow),
)
