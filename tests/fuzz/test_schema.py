"""Requests made from the server's own OpenAPI document, as it says and against what it says."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
import schemathesis
from hypothesis import given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.fuzz.conftest import ROWS
from tests.services.wire import Wire, check, stream
from tiltyard.bootstrap import register_operations
from tiltyard.model.operations import bound_operations
from tiltyard.model.spec import ARROW_STREAM, Shape, operations

pytestmark = pytest.mark.extended

register_operations()
SERVED = sorted(name for name, (_, served) in bound_operations().items() if served is not None)

IDENTIFIERS = {
    "namespace": ["$", "n", "none", "n$deeper"],
    "table": ["t", "n$t", "d", "none", "none$t", "$"],
    "transaction": ["none", "t"],
}


@schemathesis.serializer(ARROW_STREAM)
def as_bytes(context: Any, value: Any) -> bytes:
    """Bodies of Arrow come from `bodies` instead: schemathesis only has to think that it can."""
    return bytes(value)


ARROW = stream(ROWS)
bodies = st.sampled_from([ARROW, stream(ROWS.schema), b"", ARROW[:-9], ARROW[100:]]) | st.binary(max_size=200)


@pytest.fixture(scope="module")
def document(server: Any) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", SERVED)
def test_operation_takes_any_request_without_a_server_error(
    furnished: Wire, document: Any, bounds: settings, name: str, mode: GenerationMode
) -> None:
    facts = operations()[name]
    identifiers = st.sampled_from(IDENTIFIERS[facts.object]) if facts.object in IDENTIFIERS else st.none()
    case_strategy = document[facts.path][facts.method].as_strategy(generation_mode=mode)

    @bounds
    @given(case=case_strategy, identifier=st.none() | identifiers | identifiers, keep_id=st.booleans(), arrow=bodies)
    def ask(case: Any, identifier: str | None, keep_id: bool, arrow: bytes) -> None:
        path = dict(case.path_parameters or {})
        if identifier is not None:
            path["id"] = quote(identifier, safe="")
        body = None if isinstance(case.body, schemathesis.core.NotSet) else case.body
        if isinstance(body, dict) and not keep_id:
            body = {key: value for key, value in body.items() if key != "id"}  # two ids rarely agree
        if identifier is not None:
            case.query = {key: value for key, value in (case.query or {}).items() if key != "delimiter"}
        raw = arrow if facts.request_shape is Shape.ARROW else body
        sent: dict[str, Any] = {"content": raw} if isinstance(raw, bytes) else {"json": raw}
        url = "/".join(str(path.get(part[1:-1], part)) if part[:1] == "{" else part for part in facts.path.split("/"))
        url = quote(url, safe="/%$")
        check(furnished.http.request(facts.method, url, params=flat(case.query), **sent))

    ask()


def flat(query: Any) -> list[tuple[str, str]]:
    """Query parameters as text, whatever schemathesis thought of."""
    pairs = [
        (key, item) for key, value in (query or {}).items() for item in (value if isinstance(value, list) else [value])
    ]
    return [(clean(key), clean(value if isinstance(value, str) else str(value))) for key, value in pairs]


def clean(text: str) -> str:
    """Without lone surrogates, which no URL can carry."""
    return text.encode(errors="replace").decode()
