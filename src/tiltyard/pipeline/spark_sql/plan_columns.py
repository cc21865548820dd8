"""Which columns of tables and files a DataFrame's columns are made from, by Spark's analyzed plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tiltyard.model.columns.lineage import ANY_COLUMN, Derivation
from tiltyard.pipeline.spark_sql.spark_plans import class_name, to_list, walk_expressions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DATA_SOURCE = "tiltyard"
MAX_EXPRESSIONS = 5_000
"""Expressions of a plan that are looked at: each takes calls of the Java virtual machine."""
TOO_LARGE = f"the query has more than {MAX_EXPRESSIONS} expressions"
_FUNCTIONS = frozenset({"PythonUDF", "PythonUDAF", "PythonUDTF", "ScalaUDF", "ScalaAggregator"})
_OF_SEVERAL_ROWS = frozenset({"AggregateExpression", "WindowExpression"})
_SUBQUERIES = frozenset({"ScalarSubquery", "ListQuery", "Exists"})
"""Expressions that have a query of their own."""


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of a table or file, by the name that the plan has of that, and how another one is made from it."""

    table: str
    column: str
    how: Derivation = Derivation.DIRECT


class PlanTooLargeError(Exception):
    """The plan has more than MAX_EXPRESSIONS expressions."""


def read_columns(
    frame: DataFrame, views: Mapping[str, str], other_rows: str = ""
) -> dict[str, tuple[SourceColumn, ...]]:
    """Return the source columns of each column of a DataFrame; of a constant there are none.

    `views` are the names of its tables by those of the temporary views that it reads. Without views the tables and
    files are those that the plan itself names, and what else it reads is called `other_rows`. A column that is made by
    what is not understood may be of any column of any of them (ANY_COLUMN). Raises PlanTooLargeError.
    """
    plan = frame._jdf.queryExecution().analyzed()  # PySpark has no other way
    graph = _ColumnGraph()
    stack = [plan]
    while stack:
        node = stack.pop()
        below = [*to_list(node.children()), *to_list(node.subqueries())]
        names = _view_names(node, views) if views else relation_names(node)
        if names or not (below or views or class_name(node) in _WITHOUT_ROWS):
            graph.add_relation(node, names or (other_rows,))
            continue
        graph.add_node(node)
        stack += below
    graph.link_common_tables()
    return {str(column.name()): graph.trace(_id(column)) for column in to_list(plan.output())}


_WITHOUT_ROWS = frozenset({"OneRowRelation", "CTERelationRef"})
"""Leaves of plans that read nothing."""


def _view_names(node: Any, views: Mapping[str, str]) -> Sequence[str]:
    name = str(node.desc().identifier().table()) if class_name(node) == "View" else ""
    return (views[name],) if name in views else ()


def read_relations(frame: DataFrame) -> list[Any]:
    """Return the nodes of a DataFrame's plan that read something, each once."""
    found: dict[str, Any] = {}
    stack = [frame._jdf.queryExecution().analyzed()]  # PySpark has no other way
    while stack:
        node = stack.pop()
        below = [*to_list(node.children()), *to_list(node.subqueries())]
        stack += reversed(below)
        if not below:
            found.setdefault(" ".join(relation_names(node)) or class_name(node), node)
    return list(found.values())


def reads_table(node: Any) -> bool:
    """Return whether a node reads a table by the data source `tiltyard`."""
    return class_name(node) == "DataSourceV2Relation" and bool(node.table().name() == DATA_SOURCE)


def relation_names(node: Any) -> Sequence[str]:
    """Return the table of a node that reads one by the data source `tiltyard`, or the paths of one that reads files.

    These are the names of the lineage's sources (`tiltyard.pipeline.lineage.frame_sources`).
    """
    if reads_table(node):
        return (str(node.options().get("table")),)
    if class_name(node) == "LogicalRelation" and class_name(node.relation()) == "HadoopFsRelation":
        return tuple(_local(str(path.toString())) for path in to_list(node.relation().location().rootPaths()))
    return ()


def _local(path: str) -> str:
    """Return a path of Hadoop's, which has the form file:/raw/a.csv, as jobs name it."""
    return path.removeprefix("file:") if path.startswith("file:/") and not path.startswith("file://") else path


@dataclass(slots=True)
class _ColumnGraph:
    """The columns of a plan by the ids that Spark gives them, each with those that it is made from, and how."""

    made_from: dict[int, list[tuple[int, Derivation]]] = field(default_factory=lambda: defaultdict(list))
    sources: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    relations: dict[str, None] = field(default_factory=dict)
    _expressions: int = 0
    _common_tables: dict[int, list[Any]] = field(default_factory=dict)
    _references: list[Any] = field(default_factory=list)

    def add_relation(self, node: Any, names: Sequence[str]) -> None:
        """Add the columns of tables or files."""
        self.relations.update(dict.fromkeys(names))
        for column in to_list(node.output()):
            self.sources[_id(column)] = [(name, str(column.name())) for name in names]

    def add_node(self, node: Any) -> None:
        """Add the columns that a node makes of its children's."""
        name = class_name(node)
        if name == "Union":  # its columns have the ids of those of its first query
            for child in to_list(node.children()):
                self._link_outputs(node, to_list(child.output()))
        elif name == "CTERelationDef":
            self._common_tables[node.id()] = to_list(node.child().output())
        elif name == "CTERelationRef":
            self._references.append(node)
        elif name == "Generate":
            for column in to_list(node.generatorOutput()):
                self._link(column, _inputs(node.generator()), Derivation.TRANSFORMED)
        elif name == "Expand":
            self._add_projections(node)
        for alias in self._expressions_of(node):
            if class_name(alias) == "Alias":
                self._link(alias, _inputs(alias.child()), _derivation(alias.child()))

    def _expressions_of(self, node: Any) -> Iterator[Any]:
        """Yield the expressions of a node. Raises PlanTooLargeError."""
        for expression in walk_expressions(node):
            self._expressions += 1
            if self._expressions > MAX_EXPRESSIONS:
                raise PlanTooLargeError
            yield expression

    def _add_projections(self, node: Any) -> None:
        for projection in to_list(node.projections()):
            for column, expression in zip(to_list(node.output()), to_list(projection), strict=True):
                self._link(column, _inputs(expression), _derivation(expression))

    def link_common_tables(self) -> None:
        """Link the columns of the references to queries of WITH, all of which have been added by now."""
        for reference in self._references:
            self._link_outputs(reference, self._common_tables[reference.cteId()])

    def trace(self, column: int) -> tuple[SourceColumn, ...]:
        """Return the columns of tables and files that a column is made from."""
        found: dict[tuple[str, str], Derivation] = {}
        seen, stack = set[tuple[int, Derivation]](), [(column, Derivation.DIRECT)]
        while stack:
            number, how = step = stack.pop()
            if step in seen:
                continue
            seen.add(step)
            for source in self.sources.get(number, ()):
                found[source] = how.after(found.get(source, Derivation.DIRECT))
            if number not in self.sources and number not in self.made_from:
                found.update({(name, ANY_COLUMN): Derivation.UNKNOWN for name in self.relations})
            stack += [(other, how.after(made)) for other, made in self.made_from.get(number, ())]
        return tuple(SourceColumn(*source, how) for source, how in found.items())

    def _link_outputs(self, node: Any, columns: Sequence[Any]) -> None:
        for column, other in zip(to_list(node.output()), columns, strict=True):
            self._link(column, [_id(other)], Derivation.DIRECT)

    def _link(self, column: Any, inputs: Iterable[int], how: Derivation) -> None:
        self.made_from[_id(column)] += [(number, how) for number in inputs if number != _id(column)]


def _id(column: Any) -> int:
    return int(column.exprId().id())


def _walk(expression: Any) -> Iterable[Any]:
    yield expression
    for child in to_list(expression.children()):
        yield from _walk(child)


def _inputs(expression: Any) -> list[int]:
    """Return the ids of the columns that an expression uses, those that its subqueries return included."""
    inputs = [_id(column) for column in to_list(expression.references().toSeq())]
    for each in _walk(expression):
        if class_name(each) in _SUBQUERIES:
            inputs += [_id(column) for column in to_list(each.plan().output())]
    return inputs


def _derivation(expression: Any) -> Derivation:
    if class_name(expression) == "AttributeReference":
        return Derivation.DIRECT
    names = {class_name(each) for each in _walk(expression)}
    if names & _FUNCTIONS:
        return Derivation.FUNCTION
    return Derivation.AGGREGATED if names & _OF_SEVERAL_ROWS else Derivation.TRANSFORMED
