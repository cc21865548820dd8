"""The page of a table's access: what its reader may do, who has grants, its policies and its classifications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError

from tiltyard.access.authorization import effective_policy_of, is_administrator
from tiltyard.access.policies import MaskKind
from tiltyard.console.access.forms import AT_ONCE, entered_lines, form_actions, required_text
from tiltyard.console.page import Page, PageRequest, Redirect
from tiltyard.console.table.heads import read_head
from tiltyard.console.templates import link
from tiltyard.model.classifications import parse_classification

if TYPE_CHECKING:
    from collections.abc import Mapping


MASKS = tuple(kind.value for kind in MaskKind)
VIEW = "policies"
MAX_MASKS = 500


def show(page: PageRequest, problem: str = "", status: int = 200) -> Page:
    """Show who may do what with a table. Raises what describing it raises."""
    head, calls = read_head(page), page.calls
    id_ = list(page.path)
    mine = calls.call("CheckPrivileges", object_kind="table", id=id_)
    grants = calls.attempt("ListGrants", object_kind="table", id=id_, limit=AT_ONCE)
    policies = calls.attempt("ListTablePolicies", id=id_)
    classified = calls.attempt("ListClassifications", object_kind="table", id=id_)
    policy = effective_policy_of(calls.ctx, calls.ctx.find_table(page.path))
    values = head.values(page, VIEW) | {
        "mine": mine.privileges,
        "policy": policy,
        "is_administrator": is_administrator(calls.ctx),
        "grants": grants.grants if grants is not None else None,
        "more_grants": grants is not None and bool(grants.page_token),
        "policies": policies.policies if policies is not None else None,
        "classifications": classified.classifications if classified is not None else [],
        "may_classify": calls.allows("SetClassification", object_kind="table", id=id_, key="key"),
        "masks": MASKS,
        "problem": problem,
        "entered": _entered(page) if problem else {},
    }
    return Page("policies.html", values, status)


def _entered(page: PageRequest) -> dict[str, str]:
    return {name: values[-1] for name, values in page.form.items()}


def _set(page: PageRequest) -> Redirect:
    page.calls.call(
        "SetTablePolicy",
        id=list(page.path),
        name=required_text(page, "name", "a name for the policy"),
        filter=page.text("filter") or None,
        masks=_masks(page) or None,
        exempt_roles=entered_lines(page.text("exempt")) or None,
    )
    return Redirect(link(VIEW, page.path))


def _masks(page: PageRequest) -> list[Mapping[str, str]]:
    """Return the masks of the form, a line each: `column: hide`, `column: null`, or `column: an expression of SQL`.

    Raises InvalidInputError.
    """
    masks: list[Mapping[str, str]] = []
    for line in entered_lines(page.text("masks"))[:MAX_MASKS]:
        column, colon, rule = line.partition(":")
        if not colon or not rule.strip():
            raise InvalidInputError(f"A mask is a line COLUMN: hide, null or an expression, not '{line[:60]}'.")
        kind, rule = rule.strip().lower(), rule.strip()
        if kind in (MaskKind.HIDE, MaskKind.NULL):
            masks.append({"column": column.strip(), "mask": kind})
        else:
            masks.append({"column": column.strip(), "mask": MaskKind.EXPRESSION.value, "expression": rule})
    return masks


def _drop(page: PageRequest) -> Redirect:
    page.calls.call("DropTablePolicy", id=list(page.path), name=required_text(page, "name", "the policy's name"))
    return Redirect(link(VIEW, page.path))


def _classify(page: PageRequest) -> Redirect:
    key, value = parse_classification(required_text(page, "classification", "a key, as in pii=email"))
    page.calls.call("SetClassification", **_classified(page), key=key, value=value)
    return Redirect(link(VIEW, page.path))


def _unclassify(page: PageRequest) -> Redirect:
    page.calls.call("UnsetClassification", **_classified(page), key=required_text(page, "key", "the key"))
    return Redirect(link(VIEW, page.path))


def _classified(page: PageRequest) -> dict[str, Any]:
    """Return the fields of a request about the table, or the column that the form names."""
    column = page.text("column").strip()
    named = {"object_kind": "column", "column": column} if column else {"object_kind": "table"}
    return {**named, "id": list(page.path)}


act = form_actions(show, {"set": _set, "drop": _drop, "classify": _classify, "unclassify": _unclassify})
