-- What was dropped, deregistered or replaced, and can still be brought back. A removed table has the id that it had, and
-- `namespace` is the JSON list of the names above it. `removal` is the same for all that went with one namespace.
-- `dropped` ones lie in doomed_folders, whose due_at is their clock; `due_at` is that of the others.

CREATE TABLE removed_tables (
    id BIGINT PRIMARY KEY,
    removal {text},
    namespace {text} NOT NULL,
    namespace_id BIGINT NOT NULL,
    name {text} NOT NULL,
    location {text} NOT NULL,
    properties TEXT NOT NULL,
    managed BOOLEAN NOT NULL,
    declared BOOLEAN NOT NULL,
    registered BOOLEAN NOT NULL,
    created_at BIGINT NOT NULL,
    dropped BOOLEAN NOT NULL,
    removed_at BIGINT NOT NULL,
    due_at BIGINT NOT NULL
);

CREATE INDEX removed_tables_name ON removed_tables (namespace, name);

CREATE INDEX removed_tables_location ON removed_tables (location);

CREATE INDEX removed_tables_removal ON removed_tables (removal);

CREATE INDEX removed_tables_removed ON removed_tables (removed_at, id);

CREATE INDEX removed_tables_due ON removed_tables (due_at) WHERE NOT dropped;

CREATE TABLE removed_versions (
    table_id BIGINT NOT NULL REFERENCES removed_tables (id) ON DELETE CASCADE,
    branch {text} NOT NULL,
    version BIGINT NOT NULL,
    staged_path TEXT NOT NULL,
    manifest_path TEXT NOT NULL,
    manifest_size BIGINT,
    e_tag TEXT,
    metadata TEXT NOT NULL,
    naming_scheme TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    finalized BOOLEAN NOT NULL,
    transaction_id {text},
    PRIMARY KEY (table_id, branch, version)
);

-- `top` is the one that was dropped; the others went with it.
CREATE TABLE removed_namespaces (
    id BIGINT PRIMARY KEY,
    removal {text} NOT NULL,
    top BOOLEAN NOT NULL,
    parent_id BIGINT NOT NULL,
    path {text} NOT NULL,
    properties TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    removed_at BIGINT NOT NULL,
    due_at BIGINT NOT NULL
);

CREATE INDEX removed_namespaces_removal ON removed_namespaces (removal);

CREATE INDEX removed_namespaces_path ON removed_namespaces (path) WHERE top;

CREATE INDEX removed_namespaces_removed ON removed_namespaces (removed_at, id) WHERE top;

CREATE INDEX removed_namespaces_due ON removed_namespaces (due_at);

-- Whose files a shallow clone uses. table_id is no foreign key: a dropped clone that comes back still needs them.
CREATE TABLE clone_sources (
    table_id BIGINT NOT NULL,
    location {text} NOT NULL,
    PRIMARY KEY (location, table_id)
);
