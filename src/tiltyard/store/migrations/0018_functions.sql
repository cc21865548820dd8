-- A function of clients: a name in a namespace with versions, each immutable. definition is JSON without the source, which
-- lies in storage under its digest. namespace_id is no foreign key: functions stay with a dropped namespace for as long as
-- it can be restored. A number is never a version's twice (last_version).
CREATE TABLE functions (
    object_id {text} PRIMARY KEY,
    namespace_id BIGINT NOT NULL,
    name {text} NOT NULL,
    last_version BIGINT NOT NULL,
    UNIQUE (namespace_id, name)
);

CREATE TABLE function_versions (
    object_id {text} NOT NULL REFERENCES functions (object_id) ON DELETE CASCADE,
    version BIGINT NOT NULL,
    definition TEXT NOT NULL,
    manifest_digest {text} NOT NULL,
    artifact {text} NOT NULL,
    created_at BIGINT NOT NULL,
    created_by {text} NOT NULL,
    PRIMARY KEY (object_id, version),
    UNIQUE (object_id, manifest_digest)
);

CREATE INDEX function_versions_artifact ON function_versions (artifact);

-- Which columns a version computes, or did: a column that was dropped, or computed otherwise, stays until it is looked at.
CREATE TABLE function_uses (
    object_id {text} NOT NULL REFERENCES functions (object_id) ON DELETE CASCADE,
    version BIGINT NOT NULL,
    table_id BIGINT NOT NULL,
    branch {text} NOT NULL,
    column_name {text} NOT NULL,
    PRIMARY KEY (object_id, version, table_id, branch, column_name)
);
