"""The functions of DuckDB and PostgreSQL that have another name here, and those that have none, with the word to use.

A translation is a text with one `{}` for each argument, in their order: so each argument stays once, as it was written,
and no nesting makes a statement larger than in proportion. A name that is called with another number of arguments is
left to DataFusion.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


def _by_part(part: str) -> Mapping[int, str]:
    return {1: f"date_part('{part}', {{}})"}


def _renamed(name: str, *counts: int) -> Mapping[int, str]:
    return {count: f"{name}({', '.join(['{}'] * count)})" for count in counts}


_MOMENT = "arrow_cast(date_trunc('microsecond', {}), 'Timestamp(µs)')"
"""The innermost call refuses what is no time, where a cast would take a number for one."""
_DIFFERENCE = {3: f"date_diff({{}}, {_MOMENT}, {_MOMENT})"}
_TIMES = {
    **{
        name: _by_part(part)
        for name, part in {
            "year": "year",
            "quarter": "quarter",
            "month": "month",
            "week": "week",
            "weekofyear": "week",
            "day": "day",
            "dayofmonth": "day",
            "dayofweek": "dow",
            "weekday": "dow",
            "isodow": "isodow",
            "dayofyear": "doy",
            "hour": "hour",
            "minute": "minute",
            "second": "second",
            "epoch": "epoch",
        }.items()
    },
    "epoch_ms": {
        1: "CAST(arrow_cast(date_trunc('millisecond', date_trunc('microsecond', {})"
        " + INTERVAL '500 microseconds'), 'Timestamp(ms)') AS BIGINT)"
    },
    "epoch_us": {1: "CAST(arrow_cast(date_trunc('microsecond', {}), 'Timestamp(µs)') AS BIGINT)"},
    "dayname": {1: "to_char({}, '%A')"},
    "monthname": {1: "to_char({}, '%B')"},
    "last_day": {1: "CAST(date_trunc('month', {}) + INTERVAL '1 month' - INTERVAL '1 day' AS DATE)"},
    "date_diff": _DIFFERENCE,
    "datediff": _DIFFERENCE,
    "date_add": {2: "(({}) + ({}))"},
    "get_current_timestamp": {0: "now()"},
    "transaction_timestamp": {0: "now()"},
}

_TEXTS = {
    "lcase": _renamed("lower", 1),
    "ucase": _renamed("upper", 1),
    "ord": _renamed("ascii", 1),
    "unicode": _renamed("ascii", 1),
    "prefix": _renamed("starts_with", 2),
    "suffix": _renamed("ends_with", 2),
    "editdist3": _renamed("levenshtein", 2),
    "strlen": _renamed("octet_length", 1),
    "hex": {1: "upper(encode({}, 'hex'))"},
    "to_base64": {1: "encode({}, 'base64pad')"},
    "base64": {1: "encode({}, 'base64pad')"},
    "gen_random_uuid": {0: "uuid()"},
    "regexp_matches": _renamed("regexp_like", 2, 3),
    "regexp_full_match": {2: "regexp_like({}, concat('^(?:', {}, ')$'))"},
    "regexp_substr": {2: "array_element(regexp_match({}, concat('(', {}, ')')), 1)"},
    "regexp_extract": {2: "regexp_extract({}, {}, 0)", 3: "regexp_extract({}, {}, {})"},
    "str_split": _renamed("string_split", 2),
    "split": _renamed("string_split", 2),
    "string_split_regex": _renamed("regexp_split", 2),
    "str_split_regex": _renamed("regexp_split", 2),
    "regexp_split_to_array": _renamed("regexp_split", 2),
    "regexp_split_to_table": {2: "unnest(regexp_split({}, {}))"},
    "string_to_table": {2: "unnest(string_to_array({}, {}))"},
}

_NUMBERS = {
    "ceiling": _renamed("ceil", 1),
    "sign": _renamed("signum", 1),
    "mod": {2: "(({}) % ({}))"},
    "if": {3: "CASE WHEN {} THEN {} ELSE {} END"},
}

_LISTS = {
    "list_value": {count: f"make_array({', '.join(['{}'] * count)})" for count in range(33)},
    "list_pack": {count: f"make_array({', '.join(['{}'] * count)})" for count in range(33)},
    "list_min": _renamed("array_min", 1),
    "list_sort": {1: "array_sort({}, 'ASC', 'NULLS LAST')", 2: "array_sort({}, {}, 'NULLS LAST')"},
    "list_reverse_sort": {1: "array_sort({}, 'DESC', 'NULLS LAST')"},
    "struct_extract": _renamed("get_field", 2),
}

_AGGREGATES = {
    "any_value": {1: "first_value({} IGNORE NULLS)"},
    "approx_count_distinct": _renamed("approx_distinct", 1),
    "approx_quantile": _renamed("approx_percentile_cont", 2),
    "count_if": {1: "count(CASE WHEN {} THEN 1 END)"},
    "countif": {1: "count(CASE WHEN {} THEN 1 END)"},
    "every": _renamed("bool_and", 1),
    "variance": _renamed("var_samp", 1),
}

_JSON = {
    "json_array_length": {1: "json_array_length({}, '$')", 2: "json_array_length({}, {})"},
    "json_keys": {1: "json_keys({}, '$')", 2: "json_keys({}, {})"},
    "json_type": {1: "json_type({}, '$')", 2: "json_type({}, {})"},
    "jsonb_typeof": _renamed("json_typeof", 1),
    "json_object_keys": {1: "unnest(json_object_keys({}))"},
    "jsonb_object_keys": {1: "unnest(json_object_keys({}))"},
    "json_array_elements": {1: "unnest(json_array_elements({}))"},
    "jsonb_array_elements": {1: "unnest(json_array_elements({}))"},
    "json_array_elements_text": {1: "unnest(json_array_elements_text({}))"},
    "jsonb_array_elements_text": {1: "unnest(json_array_elements_text({}))"},
}

TRANSLATIONS: Mapping[str, Mapping[int, str]] = MappingProxyType(
    {**_TIMES, **_TEXTS, **_NUMBERS, **_LISTS, **_AGGREGATES, **_JSON}
)
"""By the name of a function, in lower case, and by how many arguments it is called with."""

RENAMED: Mapping[str, str] = MappingProxyType(
    {"list": "array_agg", "first": "first_value", "last": "last_value", "listagg": "string_agg"}
)
"""Aggregates that take the same arguments, with an ORDER BY among them, by another name."""

_EACH = "unnest(json_keys(…)) for the keys, unnest of json_array_elements(…) for the values of a list"
_CAST = "CAST(json_get_string(…) AS BIGINT), DOUBLE or BOOLEAN"
_LAMBDA = "unnest the list, compute, and array_agg the results"
_OF_LIST = "an aggregate of SELECT unnest(list)"

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("json_value", "json_query"), "json_extract_string or json_extract"),
        **dict.fromkeys(("json_each", "jsonb_each", "json_each_text", "json_tree", "json_table"), _EACH),
        **dict.fromkeys(("json_get_int", "json_get_float", "json_get_bool"), _CAST),
        **dict.fromkeys(
            """json_object json_array json_build_object jsonb_build_object json_build_array json_agg jsonb_agg to_json
            to_jsonb row_to_json json_group_array json_group_object json_quote json_merge_patch jsonb_set
            json_transform from_json json_structure json_object_agg jsonb_object_agg""".split(),  # noqa: SIM905
            "the columns themselves, and make JSON of the rows where they are read",
        ),
        **dict.fromkeys(
            ("jsonb_path_query", "jsonb_path_exists", "jsonb_path_match", "jsonb_path_query_first"),
            "json_extract(…, '$.a.b') or json_exists(…, '$.a.b')",
        ),
        **dict.fromkeys(
            """list_transform list_apply array_apply list_filter list_reduce array_transform array_filter apply filter
            reduce""".split(),  # noqa: SIM905
            _LAMBDA,
        ),
        **dict.fromkeys(
            """list_aggregate list_aggr array_aggregate list_sum list_avg list_median list_mode list_count
            list_string_agg list_unique list_histogram""".split(),  # noqa: SIM905
            _OF_LIST,
        ),
        "len": "length(…) of a text, or array_length(…) of a list",
        "mode": "the value of SELECT value … GROUP BY value ORDER BY count(*) DESC LIMIT 1",
        **dict.fromkeys(
            ("quantile", "quantile_disc", "percentile_disc"),
            "percentile_cont(0.5) WITHIN GROUP (ORDER BY …), which interpolates",
        ),
        "product": "exp(sum(ln(…)))",
        **dict.fromkeys(("skewness", "kurtosis", "entropy", "histogram"), "GROUP BY and count(*)"),
        **dict.fromkeys(("format", "printf"), "||, concat(…) and to_char(…, '%Y-%m-%d')"),
        "regexp_extract_all": "regexp_extract(…), or regexp_count(…)",
        **dict.fromkeys(("to_days", "to_hours", "to_minutes", "to_seconds", "make_interval"), "INTERVAL '3 days'"),
        **dict.fromkeys(("make_timestamp", "make_timestamptz"), "CAST('2024-02-03 04:05:06' AS TIMESTAMP)"),
        "age": "date_diff('day', start, stop), or stop - start",
        "date_sub": "date_diff('month', start, stop), which counts boundaries, or date - INTERVAL '1 month'",
        "epoch_ns": "epoch_us(…) * 1000",
        "try_strptime": "strptime(…, '%Y-%m-%d') of rows that have the format",
        **dict.fromkeys(("typeof", "pg_typeof"), "arrow_typeof(…)"),
        **dict.fromkeys(("sha1", "hash", "md5_number"), "md5(…) or sha256(…)"),
        "columns": "the names of the columns",
        "try": "TRY_CAST(… AS BIGINT), or CASE",
        **dict.fromkeys(("isinf", "isfinite"), "abs(x) = CAST('inf' AS DOUBLE)"),
        "fdiv": "floor(a / b)",
        "div": "trunc(a / b), or a / b of whole numbers",
        "xor": "(a | b) - (a & b)",
        "generate_subscripts": "generate_series(1, array_length(…))",
        **dict.fromkeys(("list_cosine_similarity", "array_cosine_similarity"), "1 - cosine_distance(a, b)"),
        **dict.fromkeys(("list_cosine_distance", "array_cosine_distance"), "cosine_distance(a, b)"),
        **dict.fromkeys(("list_inner_product", "list_dot_product", "array_inner_product"), "inner_product(a, b)"),
        "array_upper": "array_length(…)",
        "to_number": "CAST(… AS DECIMAL(18, 4))",
        "bar": "a chart of the console",
    }
)
"""Functions that are not served, and what to write instead."""

TYPES: Mapping[str, str] = MappingProxyType(
    {
        "ubigint": "BIGINT UNSIGNED",
        "uinteger": "INT UNSIGNED",
        "usmallint": "SMALLINT UNSIGNED",
        "utinyint": "TINYINT UNSIGNED",
        "hugeint": "DECIMAL(38,0)",
        "blob": "BYTEA",
        "bpchar": "VARCHAR",
        "float4": "REAL",
    }
)
"""Types of DuckDB and PostgreSQL by their names here; `json` and `jsonb` are texts that are checked."""
