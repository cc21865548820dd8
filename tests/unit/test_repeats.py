"""Which operations are run once: all but those that only read."""

from __future__ import annotations

from tiltyard.api.repeats import changes
from tiltyard.spec import operations

READS = {
    "AnalyzeTableQueryPlan",
    "CheckPrivileges",
    "CountTableRows",
    "DescribeNamespace",
    "DescribeTable",
    "DescribeTableIndexStats",
    "DescribeTableVersion",
    "DescribeTransaction",
    "ExplainTableQueryPlan",
    "GetTableStats",
    "GetTableTagVersion",
    "ListAllTables",
    "ListNamespaces",
    "ListTableBranches",
    "ListTableIndices",
    "ListTableTags",
    "ListTableVersions",
    "ListTables",
    "NamespaceExists",
    "PrewarmTableIndex",
    "PrewarmTablePageCache",
    "QueryTable",
    "TableExists",
    "WhoAmI",
}


def test_changes_is_true_of_all_operations_that_do_not_only_read() -> None:
    reads = {name for name, operation in operations().items() if not changes(operation)}
    assert reads >= READS
    assert all(name.startswith(("Describe", "Get", "List")) for name in reads - READS)
