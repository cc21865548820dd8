"""The functions that queries may call: those that were reviewed, and of these in each query the ones that it names."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from tiltyard.tables.sql.functions import FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from datafusion import SessionContext

_AGGREGATES = frozenset(
    """
    approx_distinct approx_median approx_percentile_cont approx_percentile_cont_with_weight array_agg avg bit_and bit_or
    bit_xor bool_and bool_or corr count covar covar_pop covar_samp first_value grouping last_value max mean median min
    nth_value percentile_cont quantile_cont regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx
    regr_sxy regr_syy stddev stddev_pop stddev_samp string_agg sum var var_pop var_population var_samp var_sample
    """.split()  # noqa: SIM905
)
_WINDOWS = frozenset(
    "cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number".split()  # noqa: SIM905
)
_CALLED = re.compile(r"([a-z]\w*)\(")
_TABLE_FUNCTIONS = frozenset({"generate_series", "range"})
"""DataFusion's own, which are endless where their caller says so."""
_IMPLIED = frozenset(
    """
    array_agg array_element array_has array_slice avg btrim coalesce count date_part first_value get_field last_value
    ltrim make_array max min named_struct overlay row_number rtrim strpos substr sum
    """.split()  # noqa: SIM905
)
"""Functions that DataFusion looks up for syntax, such as `TRIM(LEADING …)`, `DISTINCT ON` and `FULL JOIN … USING`."""


class SessionFunctions:
    """The functions of one session.

    None of those that were reviewed reads a file, the network or the settings; what they may make of a row is estimated
    from the statement. A query with any other cannot be planned.

    A session has those alone that its statement names. Lance is handed all functions of the session with each scan,
    several times: 300 of them are 3 of the 8 ms of processor time that a point query takes.
    """

    def __init__(self, context: SessionContext) -> None:
        """Take all functions from a session."""
        kinds: tuple[tuple[Any, ...], ...] = (
            (context.udfs, FUNCTIONS, context.udf, context.register_udf, context.deregister_udf),
            (context.udafs, _AGGREGATES, context.udaf, context.register_udaf, context.deregister_udaf),
            (context.udwfs, _WINDOWS, context.udwf, context.register_udwf, context.deregister_udwf),
        )
        self._registrations: dict[str, list[Callable[[], None]]] = {}
        self._removals: list[Callable[[str], None]] = []
        self._registered: set[str] = set()
        for names, reviewed, find, register, deregister in kinds:
            for name in reviewed.intersection(names()):
                self._registrations.setdefault(name, []).append(partial(register, find(name)))
            for name in set(names()):
                deregister(name)
            self._removals.append(deregister)
        for name in _TABLE_FUNCTIONS:
            context.deregister_udtf(name)

    def select(self, names: Collection[str]) -> None:
        """Register the functions that a statement with these names may call, and no others."""
        wanted = self._registrations.keys() & (_IMPLIED | set(names))
        for name in self._registered - wanted:
            for remove in self._removals:
                remove(name)
        for name in wanted:  # again, also: what was removed may have had the same function by another name
            for register in self._registrations[name]:
                register()
        self._registered = wanted

    def add(self, plan: Any) -> bool:
        """Register the functions that a plan calls besides, for its operators: return whether there are any.

        Then the statement has to be planned again. A filter that calls a function that its session has not, as `struct`
        of `(a, b) = (1, 2)`, ends the process when Lance is handed it.
        """
        missing = self._registrations.keys() & set(_CALLED.findall(plan.display_indent())) - self._registered
        self._registered = self._registered | missing
        for name in missing:
            for register in self._registrations[name]:
                register()
        return bool(missing)
