"""What stands in requests: ids, tokens of pages, times, types, queries of lancedb's dialect, handles of Flight."""

from __future__ import annotations

import contextlib
import json
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from google.protobuf.message import DecodeError
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tests.fuzz.parsers.target import split_input, target, text_of
from tiltyard.api.binding import decode_json
from tiltyard.api.lancedb.query import query_request
from tiltyard.flight.handles import decode_handle
from tiltyard.flight.messages import unpack_submission
from tiltyard.flight.query_messages import unpack_command
from tiltyard.model.branches import Branch
from tiltyard.model.columns.computed_columns import VIEW
from tiltyard.model.ids import Id, check_ref, parse_id
from tiltyard.model.paging import Paging
from tiltyard.model.schedules import format_duration, parse_duration, parse_timing
from tiltyard.model.schemas import arrow_json
from tiltyard.model.spec import models
from tiltyard.model.text.typed_ids import format_id, parse_typed_id
from tiltyard.model.views.definitions import LINEAGE_PROPERTY, ViewDefinition, ViewLineage
from tiltyard.storage.locations import check_table_location, path_in_table
from tiltyard.tables.query.full_text import FullTextQueryBuilder
from tiltyard.tables.rte_specification import RteSpec

PAGING = Paging(b"secret of the tests")


@target(InvalidInputError, words="eyJ - _ = AAAAAAAAIm4i null", also="model.paging")
def page_token(data: bytes) -> None:
    """A token is one that was made here, or refused; a name is as good as one in a list by names."""
    token = text_of(data)
    made = PAGING.make_token("list", token)
    assert PAGING.read_key("list", made) == token
    with contextlib.suppress(InvalidInputError):
        PAGING.read_key("other list", made)
        raise AssertionError("the token of another list is taken")
    name = PAGING.read_name("list", token)
    assert name in (None, token) or name == str(PAGING.read_key("list", token))
    key = PAGING.read_key("list", token)
    assert PAGING.read_key("list", PAGING.make_token("list", key)) == key or not token


@target(InvalidInputError, ValueError, words='$ . " "" .. \x1f ::')
def identifier(data: bytes) -> None:
    """An id is written as it was read, in both of its forms."""
    text, delimiter = map(text_of, split_input(data, 2))
    typed = parse_typed_id(text)
    assert parse_typed_id(format_id(typed)) == typed
    Branch.parse(text).check()
    with contextlib.suppress(InvalidInputError):
        check_ref(text, "tag")
        assert text.isascii() and "\0" not in text
    path = parse_id(text, delimiter or "$")
    assert path == Id() or (delimiter or "$").join(path) == text


@target(InvalidInputError, words="* */5 0-59 MON-FRI L #2 5L @daily Europe/Berlin UTC 31 2 29 1h 30s 1.5d")
def schedule_time(data: bytes) -> None:
    """A time of a schedule has a next one, later than now, and a duration is the one that is written."""
    cron, zone, every = map(text_of, split_input(data, 3))
    if every:
        seconds = parse_duration(every)
        assert parse_duration(format_duration(seconds)) == seconds or seconds == 0, seconds
        parse_timing(None, None, seconds, catch_up=None)
    timing = parse_timing(cron, zone or None, None, catch_up=True)
    moment = 1_800_000_000_000
    due = timing.next_after(moment)
    assert due is not None and due > moment
    later = timing.next_after(due)
    assert later is None or later > due


@target(
    InvalidInputError,
    UnsupportedOperationError,
    words=(
        '{"fields":[{"name":"a","nullable":true,"type":{"type":"int64"}}]} "list" "struct" "map" '
        '"fixed_size_list" "length":2 "dict:string:int32:false" "timestamp:us:UTC" "decimal:128:10:2" '
        '"metadata":{"k":"v"} "ARROW:extension:name": "ARROW:extension:metadata": "arrow.fixed_shape_tensor" '
        '"arrow.json" "lance.blob.v2" "arrow.variable_shape_tensor" "fixed_size_list:float:3"'
    ),
)
def arrow_json_schema(data: bytes) -> None:
    """A schema in JSON is the same after it was written and read again."""
    model = decode_json(data, models.JsonArrowSchema)
    schema = arrow_json.from_json(model)
    again = arrow_json.from_json(arrow_json.to_json(schema))
    assert again.equals(schema, check_metadata=True), (schema, again)
    arrow_json.to_remote_json(schema)


QUERY_WORDS = (
    '{"vector":[1,2],"k":3} "filter":"id>1" "columns":["a"] "columns":{"b":"a+1"} "full_text_query":{"query":'
    ' {"match":{"terms":"a","column":"t"}} {"phrase": {"boost":{"positive": "negative": {"multi_match":{"query":'
    ' "match_queries": {"boolean":{"must":[ "should": "must_not": {"combined_fields": "fuzziness":"auto" null'
    ' "operator":"And" "string_query": "structured_query": "nprobes":1 "use_lsm":true'
)


@target(InvalidInputError, UnsupportedOperationError, words=QUERY_WORDS)
def lancedb_query(data: bytes) -> None:
    """A query of lancedb's dialect is a request of the specification, and its words are a query of Lance's."""
    request = query_request(decode_json(data, dict))
    assert msgspec.convert(msgspec.to_builtins(request), models.QueryTableRequest) == request
    if request.full_text_query is not None:
        FullTextQueryBuilder(lambda: ["text", "title"]).build(request.full_text_query)


@target(
    InvalidInputError,
    UnsupportedOperationError,
    DecodeError,
    words="type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery TicketStatementQuery CommandGetTables",
)
def flight_command(data: bytes) -> None:
    """A command of Flight SQL is one that is known, or refused."""
    name, message = unpack_command(data)
    assert name and message is not None


@target(InvalidInputError, DecodeError)
def flight_handle(data: bytes) -> None:
    """A handle is written again as it was read."""
    handle = decode_handle(data)
    assert decode_handle(handle.encode()) == handle
    unpack_submission(data)


@target(InvalidInputError, words="/ .. . file:// s3://bucket/ gs:// az:// %2e %2F \\ ? # /data/ t.lance //")
def location(data: bytes) -> None:
    """A location that is accepted is below a root, and no spelling of one leads out of it."""
    text, path = map(text_of, split_input(data, 2))
    roots = ("/data", "s3://bucket/root")
    folder = check_table_location(text, roots)
    assert any(folder.startswith(f"{root}/") for root in roots), folder
    assert ".." not in unquote(folder).split("/") and check_table_location(folder, roots) == folder
    assert path_in_table(folder, path).startswith(f"{folder}/")


@target(
    InvalidInputError,
    words=(
        '{"sharding":{"mode":"bucket","column":"id","num_buckets":4}} "maintained_indexes": '
        '"writer_config_defaults": "unsharded"'
    ),
)
def rte_specification(data: bytes) -> None:
    """A specification is kept as it was read."""
    spec = RteSpec.parse(decode_json(data, dict))
    assert RteSpec.parse(json.loads(spec.to_json())) == spec


@target(words='kind query {"sources":{"a":["b",1]},"definition":"x","cut":false} select true')
def stored_view(data: bytes) -> None:
    """What whoever writes a table puts where a view's definition and lineage are is read, or is none."""
    kind, text = split_input(data, 2)
    ViewLineage.from_properties({LINEAGE_PROPERTY: text_of(text)})
    schema = pa.schema([("a", pa.int64())], {f"{VIEW}kind".encode(): kind, f"{VIEW}computed".encode(): text})
    ViewDefinition.from_metadata(schema.metadata)
