"""Arrow schemas: as JSON, in two dialects that one parser reads; comparing, casting and checking them.

The *specification's* dialect (`to_json`) uses Arrow's own names: `utf8`, `int64`, `float32`, `fixed_size_list`. A plain
name stands only where upstream's and Java's readers make exactly this type of it; everything else says its unit, zone
or precision in the name, as Lance spells it: `timestamp:ns:UTC`, `decimal:128:10:2`, `dict:utf8:int32:false`.

The *remote* dialect (`to_remote_json`) is what lancedb's `db://` client reads: Lance's logical names throughout
(`string`, `float`, `date32:day`).

`from_json` and `parse_type` read both, and the variants of other writers of the specification. `nested_types` compares
types and casts rows to them, whatever the names of their inner fields.

Nothing is imported here: Spark's tasks need `nested_types` alone, and lance_namespace's errors take a second to import.
"""
