"""SQL that is combined with a policy's: allowed filters close no foreign bracket, and fail on no row."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from tiltyard.access.policies import Mask, MaskKind, Policy, bind_principal, effective_policy
from tiltyard.access.predicates import check_filter, check_visible_expression, tokenize
from tiltyard.model.principals import Principal
from tiltyard.store import PolicyRecord

COLUMNS = {"id": "number", "name": "text", "seen": "time", "odd one": "text", "s": "", "s.x": "number", "raw": ""}
PIECES = [
    "'",
    '"',
    "`",
    "(",
    ")",
    "--",
    "-",
    "/*",
    "*",
    "\\",
    "\n",
    " ",
    "a",
    "''",
    ";",
    "$",
    "E'",
    "id",
    "=",
    "1",
    "OR",
]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_tokens_that_are_taken_pair_their_brackets_and_begin_no_comment(text: str) -> None:
    try:
        tokens = tokenize(text, "filter")
    except InvalidInputError:
        return
    depth = 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        assert depth >= 0
    assert depth == 0
    bare = [token.text for token in tokens if token.kind not in ("text", "name")]
    assert not set("".join(bare)) & set("'\"`\\;$")
    outside = re.sub(r"'[^']*'|`[^`]*`", "x", text)
    assert "--" not in outside and "/*" not in outside


@pytest.mark.parametrize(
    "text",
    ["id=1", "`odd one` = 'it''s -- (fine'", "s.x IN (1, -2) AND NOT (name IS NULL OR id <> 3)", "'a' = name", "TRUE"],
)
def test_filter_of_simple_terms_is_taken(text: str) -> None:
    assert check_filter(text, "filter", COLUMNS, frozenset()) == text


@pytest.mark.parametrize(
    "text",
    ["name = id", "name = 1", "raw = 'x'", "id = date '2020-01-01'", "id - 1 = 0", "id -1 = 0", "abs(id) = 1",
     "s['x'] = 1", "`ID` = 1", "name||'x' = 'y'", "CASE WHEN id = 1 THEN true END", "id::text = '1'", "x.id = 1"],
)  # fmt: skip
def test_filter_that_may_fail_on_a_row_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        check_filter(text, "filter", COLUMNS, frozenset())


@pytest.mark.parametrize("text", ["*", "concat(*)", "struct(id, *)", "name -- x", "(id))", "id; id"])
def test_expression_of_all_columns_or_half_a_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        check_visible_expression(text, "expression", COLUMNS, frozenset())


@pytest.mark.parametrize("text", ["Name", "`name`", "lower(NAME)", "s.name", "name.x", "id + name"])
def test_expression_of_a_masked_column_is_refused(text: str) -> None:
    with pytest.raises(PermissionDeniedError):
        check_visible_expression(text, "expression", COLUMNS, frozenset({"name"}))


def test_bind_principal_puts_the_principal_in_as_a_constant() -> None:
    principal = Principal("o'ne' OR 'a'='a", ("x') OR (true", "night"))
    text = "owner = principal() AND (in_group('night') OR in_group('day') OR in_group('x'') OR (true'))"
    assert bind_principal(text, principal) == "owner = 'o''ne'' OR ''a''=''a' AND ( true OR false OR true )"


def test_bind_principal_writes_what_lance_takes_for_syntax_as_functions() -> None:
    bound = bind_principal("Substr(name, 1, 1) = 'substr(' AND trim (name) <> substr", Principal("ann"))
    assert bound == "`substr` ( name , 1 , 1 ) = 'substr(' AND `trim` ( name ) <> substr"


@pytest.mark.parametrize("name", ["a\\", "a\n", "\0"])
def test_bind_principal_for_a_name_that_is_no_safe_constant_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError):
        bind_principal("owner = principal()", Principal(name))


def record(policy: Policy, name: str = "p") -> PolicyRecord:
    return PolicyRecord(name, policy.to_json(), "root", 0)


def test_effective_policy_of_several_joins_filters_and_takes_the_stricter_mask() -> None:
    first_mask, second_mask = (Mask("a", MaskKind.EXPRESSION, f"'{text}'") for text in "xy")
    policy = effective_policy(
        [
            record(Policy("a = 1 OR b = 2", (first_mask, Mask("b", MaskKind.HIDE)))),
            record(Policy("c = 3", (second_mask, Mask("b", MaskKind.NULL)))),
            record(Policy("false", (), ("out",))),
        ],
        Principal("ann"),
        ["out"],
    )
    assert policy is not None and policy.filter == "(a = 1 OR b = 2) AND (c = 3)"
    assert policy.masks == {"a": Mask("a", MaskKind.NULL), "b": Mask("b", MaskKind.HIDE)}
    assert effective_policy([record(Policy("false", (), ("out",)))], Principal("ann"), ["out"]) is None


def test_effective_policy_with_a_policy_that_cannot_be_read_is_refused() -> None:
    for text in ("", "{", '{"filter": 1}', '{"masks": [{"column": "a", "kind": "blur"}]}'):
        with pytest.raises(PermissionDeniedError):
            effective_policy([PolicyRecord("p", text, "root", 0)], Principal("ann"), [])


def test_tokens_of_a_long_list_are_read_in_no_time() -> None:
    started_at = time.process_time()
    assert len(tokenize("name IN (" + ", ".join(["'abcdefgh'"] * 50_000) + ")", "filter")) == 100_003
    assert time.process_time() - started_at < 5  # all that stands before each text, looked at anew, would take minutes
