"""Allowlist of the SQL functions that Lance may compute for a request; every other function is refused.

Lance's planner has every function of DataFusion and some of its own, and each release adds more. A list of dangerous
functions would be incomplete the day a release adds one, so this is a list of functions that were reviewed: each is a
function of one row's values that reads nothing else, and whose result is no larger than they are, or larger in a way
that `tiltyard.tables.lance_sql.amplification` estimates.

Left out on purpose: aggregates and window functions (Lance cannot compute them for a row), functions that take other
functions (`array_transform`: their results are not estimated), functions that change a field's metadata, and those that
disclose facts about the server (`version`, `current_user`).
"""

from __future__ import annotations

import re
from collections.abc import Collection

from lance_namespace.errors import InvalidInputError

from tiltyard.tables.lance_sql.lexer import AMBIGUOUS, QUOTED_NAME, WORD

_NUMBERS = """
abs acos acosh asin asinh atan atan2 atanh cbrt ceil cos cosh cot degrees exp factorial floor gcd greatest isnan iszero
lcm least ln log log10 log2 mod nanvl pi pow power radians rand random round signum sin sinh sqrt tan tanh trunc
"""
_TEXTS = """
ascii bit_length btrim char_length character_length chr concat concat_ws contains contains_tokens ends_with find_in_set
initcap instr left length levenshtein lower lpad ltrim octet_length overlay position regexp_count regexp_instr
regexp_like regexp_match regexp_replace repeat replace reverse right rpad rtrim split_part starts_with string_to_array
string_to_list strpos substr substr_index substring substring_index to_hex translate trim upper uuid
"""
_BYTES = "decode digest encode md5 sha224 sha256 sha384 sha512"
_TIMES = """
current_date current_time current_timestamp date_bin date_format date_part date_trunc datepart datetrunc extract
from_unixtime make_date make_time now to_char to_date to_local_time to_time to_timestamp to_timestamp_micros
to_timestamp_millis to_timestamp_nanos to_timestamp_seconds to_unixtime today
"""
_TYPES = "arrow_cast arrow_try_cast arrow_typeof cast coalesce ifnull nullif nvl nvl2 try_cast"
_ARRAYS = """
any_value append cat compact concat contains dims distance distinct element empty except extract has has_all has_any
indexof intersect join length max ndims normalize pop_back pop_front position positions prepend push_back push_front
remove remove_all remove_n repeat replace replace_all replace_n resize reverse slice sort to_string union
"""
"""Each exists as `array_…` and as `list_…`."""
_LISTS = """
array_min arrays_overlap arrays_zip cardinality cosine_distance dot_product element_at empty flatten generate_series
inner_product list_zip make_array make_list range
"""
_STRUCTS = """
get_field map map_entries map_extract map_keys map_values named_struct row struct union_extract union_tag
"""
_JSON = """
json_array_contains json_array_length json_exists json_extract json_get json_get_bool json_get_float json_get_int
json_get_string
"""
_GEOMETRY = """
area asbinary astext centroid contains convexhull coorddim coveredby covers crosses disjoint distance endpoint equals
geohash geometrytype geomfromtext intersects isclosed isempty length makebox2d makepoint makepointm ndims npoints
orientedenvelope overlaps point pointfromgeohash pointm pointonsurface simplify simplifypreservetopology touches within
"""
"""Each exists as `st_…`."""

FUNCTIONS = frozenset(
    [
        *f"{_NUMBERS} {_TEXTS} {_BYTES} {_TIMES} {_TYPES} {_LISTS} {_STRUCTS} {_JSON}".split(),
        *(f"{kind}_{name}" for kind in ("array", "list") for name in _ARRAYS.split()),
        *(f"st_{name}" for name in _GEOMETRY.split()),
    ]
)
"""Names of functions that a request may call, in lower case."""

_AGGREGATES = frozenset(
    """
    any_value approx_distinct approx_median array_agg avg bit_and bit_or bit_xor bool_and bool_or corr count first_value
    last_value max mean median min stddev string_agg sum var
    """.split()  # noqa: SIM905  # a list of names is read as one
)
"""Common aggregates: their refusal has a message of its own."""

_MAX_SHOWN = 60
_SYNTAX = """
all and any array as between by case distinct div else end escape from ilike in interval is like not null on or over
rlike similar some then to using values when where with xor
"""
_SIZED = """
bigint binary bool boolean bytea char date datetime dec decimal double fixedsizebinary float int integer numeric
real smallint string text time timestamp timestamptz tinyint varbinary varchar
"""
_WORDS = frozenset(f"{_SYNTAX} {_SIZED}".split())
"""Keywords, and types with a size, that brackets may follow; Lance itself checks whether they are valid there."""

_NAME_AND_BRACKET = rf"({QUOTED_NAME}|(?<!\w){WORD})(\s*+\()?"
_CALL = re.compile(f"'[^']*'|{_NAME_AND_BRACKET}")
"""A text, or what may be a name and the bracket behind it, in one search: long lists of values are common, and the
lexer takes several times as long for them."""
_ANY_CALL = re.compile(_NAME_AND_BRACKET)
_AMBIGUOUS = re.compile(rf"{AMBIGUOUS}|\$")
"""With these, parsers of SQL differ about where a text ends: then calls are searched inside of texts, too."""


def check_functions(text: str, label: str, replaced: Collection[str] = ()) -> None:
    """Check that an expression calls only listed functions, and those of `replaced`.

    Raises InvalidInputError that names the first other one. A name in double quotes or backticks before a bracket is a
    call, too.
    """
    if "(" not in text:
        return
    for name, bracket in (_ANY_CALL if _AMBIGUOUS.search(text) else _CALL).findall(text):
        word = name.strip('"`').lower()
        if not bracket or word in FUNCTIONS or word in _WORDS or word in replaced:
            continue
        if word in _AGGREGATES:
            raise InvalidInputError(f"The {label} is about one row at a time: '{word}' is about many.")
        raise InvalidInputError(
            f"The {label} calls '{word[:_MAX_SHOWN]}', which is not among the functions that requests may call: "
            "docs/limits.md lists them."
        )
