"""The protobuf messages of Arrow Flight and Flight SQL, as far as the server uses them.

They are described here by their fields, and protobuf makes the classes at import. Code that protoc generates works with
the releases of protobuf that its own protoc is of, and would have to be generated again for others; the fields of these
messages are a published format and do not change. The field numbers are those of Flight.proto and FlightSql.proto.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

FLIGHT = "arrow.flight.protocol"
FLIGHT_SQL = f"{FLIGHT}.sql"
LANCEDB_SQL = "lancedb.sql"
SERVICE = f"{FLIGHT}.FlightService"
_TYPES = "type.googleapis.com/"
TYPE_URL = f"{_TYPES}{FLIGHT_SQL}."

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}
_MESSAGES_OF_OTHERS = {"Any": "google.protobuf.Any", "Timestamp": "google.protobuf.Timestamp"}

_FLIGHT_MESSAGES = {
    "HandshakeRequest": {"protocol_version": (1, "uint64"), "payload": (2, "bytes")},
    "HandshakeResponse": {"protocol_version": (1, "uint64"), "payload": (2, "bytes")},
    "Empty": {},
    "ActionType": {"type": (1, "string"), "description": (2, "string")},
    "Criteria": {"expression": (1, "bytes")},
    "Action": {"type": (1, "string"), "body": (2, "bytes")},
    "Result": {"body": (1, "bytes")},
    "SchemaResult": {"schema": (1, "bytes")},
    "FlightDescriptor": {"type": (1, "int32"), "cmd": (2, "bytes"), "path": (3, "repeated string")},
    "FlightInfo": {
        "schema": (1, "bytes"),
        "flight_descriptor": (2, "FlightDescriptor"),
        "endpoint": (3, "repeated FlightEndpoint"),
        "total_records": (4, "int64"),
        "total_bytes": (5, "int64"),
        "ordered": (6, "bool"),
        "app_metadata": (7, "bytes"),
    },
    "PollInfo": {
        "info": (1, "FlightInfo"),
        "flight_descriptor": (2, "FlightDescriptor"),
        "progress": (3, "optional double"),
        "expiration_time": (4, "Timestamp"),
    },
    "CancelFlightInfoRequest": {"info": (1, "FlightInfo")},
    "CancelFlightInfoResult": {"status": (1, "int32")},
    "Ticket": {"ticket": (1, "bytes")},
    "Location": {"uri": (1, "string")},
    "FlightEndpoint": {
        "ticket": (1, "Ticket"),
        "location": (2, "repeated Location"),
        "expiration_time": (3, "Timestamp"),
        "app_metadata": (4, "bytes"),
    },
    "FlightData": {
        "flight_descriptor": (1, "FlightDescriptor"),
        "data_header": (2, "bytes"),
        "app_metadata": (3, "bytes"),
        "data_body": (1000, "bytes"),
    },
    "PutResult": {"app_metadata": (1, "bytes")},
}
_KEYS = {"catalog": (1, "optional string"), "db_schema": (2, "optional string"), "table": (3, "string")}
_FLIGHT_SQL_MESSAGES = {
    "CommandGetSqlInfo": {"info": (1, "repeated uint32")},
    "CommandGetXdbcTypeInfo": {"data_type": (1, "optional int32")},
    "CommandGetCatalogs": {},
    "CommandGetDbSchemas": {"catalog": (1, "optional string"), "db_schema_filter_pattern": (2, "optional string")},
    "CommandGetTables": {
        "catalog": (1, "optional string"),
        "db_schema_filter_pattern": (2, "optional string"),
        "table_name_filter_pattern": (3, "optional string"),
        "table_types": (4, "repeated string"),
        "include_schema": (5, "bool"),
    },
    "CommandGetTableTypes": {},
    "CommandGetPrimaryKeys": _KEYS,
    "CommandGetExportedKeys": _KEYS,
    "CommandGetImportedKeys": _KEYS,
    "CommandGetCrossReference": {
        "pk_catalog": (1, "optional string"),
        "pk_db_schema": (2, "optional string"),
        "pk_table": (3, "string"),
        "fk_catalog": (4, "optional string"),
        "fk_db_schema": (5, "optional string"),
        "fk_table": (6, "string"),
    },
    "CommandStatementQuery": {"query": (1, "string"), "transaction_id": (2, "optional bytes")},
    "CommandStatementUpdate": {"query": (1, "string"), "transaction_id": (2, "optional bytes")},
    "CommandPreparedStatementQuery": {"prepared_statement_handle": (1, "bytes")},
    "CommandPreparedStatementUpdate": {"prepared_statement_handle": (1, "bytes")},
    "TicketStatementQuery": {"statement_handle": (1, "bytes")},
    "ActionCreatePreparedStatementRequest": {"query": (1, "string"), "transaction_id": (2, "optional bytes")},
    "ActionCreatePreparedStatementResult": {
        "prepared_statement_handle": (1, "bytes"),
        "dataset_schema": (2, "bytes"),
        "parameter_schema": (3, "bytes"),
    },
    "ActionClosePreparedStatementRequest": {"prepared_statement_handle": (1, "bytes")},
    "ActionCancelQueryRequest": {"info": (1, "bytes")},
    "ActionCancelQueryResult": {"result": (1, "int32")},
    "DoPutPreparedStatementResult": {"prepared_statement_handle": (1, "optional bytes")},
    "DoPutUpdateResult": {"record_count": (1, "int64")},
}

_LANCEDB_SQL_MESSAGES = {"QueryResponse": {"poll_info": (1, "PollInfo")}}
"""What lancedb reads of a query that it has submitted on one call, before its rows: with `poll_info`, where to poll."""

Fields = Mapping[str, tuple[int, str]]


def _describe_file(package: str, messages: Mapping[str, Fields]) -> descriptor_pb2.FileDescriptorProto:
    """Return the description of a file with these messages, in proto3."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    file.dependency.extend(["google/protobuf/any.proto", "google/protobuf/timestamp.proto"])
    if package != FLIGHT:
        file.dependency.append(f"{FLIGHT}.proto")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            _add_field(message, field_name, number, kind)
    return file


def _add_field(message: descriptor_pb2.DescriptorProto, name: str, number: int, kind: str) -> None:
    label, _, type_name = kind.rpartition(" ")
    field = message.field.add(name=name, number=number)
    field.label = _Field.LABEL_REPEATED if label == "repeated" else _Field.LABEL_OPTIONAL
    if type_name in _SCALARS:
        field.type = _SCALARS[type_name]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{_MESSAGES_OF_OTHERS.get(type_name, f'{FLIGHT}.{type_name}')}"
    if label == "optional":  # proto3 has a group of one for each field whose absence can be told
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")


_pool = descriptor_pool.DescriptorPool()  # one of our own: another package may have registered these names
for _file in (any_pb2, timestamp_pb2):
    _pool.AddSerializedFile(_file.DESCRIPTOR.serialized_pb)
_PACKAGES = {FLIGHT: _FLIGHT_MESSAGES, FLIGHT_SQL: _FLIGHT_SQL_MESSAGES, LANCEDB_SQL: _LANCEDB_SQL_MESSAGES}
for _package, _messages in _PACKAGES.items():
    _pool.AddSerializedFile(_describe_file(_package, _messages).SerializeToString())


def _message_class(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(name))


Any_ = _message_class("google.protobuf.Any")
Timestamp = _message_class("google.protobuf.Timestamp")
MESSAGES: Mapping[str, Any] = {
    name: _message_class(f"{package}.{name}") for package, messages in _PACKAGES.items() for name in messages
}
"""The classes by name."""

DESCRIPTOR_OF_COMMAND = 2
"""The type of a FlightDescriptor that has a command."""
CANCELLED = 1
NOT_CANCELLABLE = 3
"""Results of a cancellation."""


def pack(name: str, **fields: Any) -> bytes:
    """Return a message of Flight SQL as a command: wrapped in an Any, with its type."""
    wrapped: bytes = Any_(type_url=f"{TYPE_URL}{name}", value=MESSAGES[name](**fields).SerializeToString())
    return wrapped.SerializeToString()  # type: ignore[attr-defined,no-any-return]


def unpack(command: bytes) -> tuple[str, Any] | None:
    """Return the name of a command's message and the message; None for one that is none of Flight SQL's.

    Raises DecodeError for bytes that are no message.
    """
    wrapped = Any_.FromString(command)
    name = wrapped.type_url.removeprefix(TYPE_URL)
    if name == wrapped.type_url or name not in _FLIGHT_SQL_MESSAGES:
        return None
    return name, MESSAGES[name].FromString(wrapped.value)


def unpack_submission(ticket: bytes) -> tuple[str, Any] | None:
    """Return the command of a ticket that submits a query, as lancedb 0.41 does; None for any other ticket.

    Such a ticket has the command in its field 2, where an Any has its value, and no type. Raises DecodeError.
    """
    wrapped = Any_.FromString(ticket)
    return unpack(wrapped.value) if wrapped.value and not wrapped.type_url else None


def pack_decision(poll_info: Any = None) -> bytes:
    """Return the FlightData by which lancedb learns of its query whether the rows follow, or where to poll for them."""
    response = MESSAGES["QueryResponse"](poll_info=poll_info).SerializeToString()
    decision = Any_(type_url=f"{_TYPES}{LANCEDB_SQL}.QueryResponse", value=response).SerializeToString()
    encoded: bytes = MESSAGES["FlightData"](app_metadata=decision).SerializeToString()
    return encoded
