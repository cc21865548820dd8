-- Statements end with a semicolon at the end of a line; {id} and {text} differ by database (see `Database.dialect`).
-- Foreign keys without an action refuse at the end of the statement, so a whole tree can go in one DELETE.

CREATE TABLE namespaces (
    id {id},
    parent_id BIGINT REFERENCES namespaces (id),
    name {text} NOT NULL,
    properties TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    UNIQUE (parent_id, name),
    CHECK ((id = 1) = (parent_id IS NULL))
);

INSERT INTO namespaces (parent_id, name, properties, created_at) VALUES (NULL, '', '{}', 0);

CREATE TABLE tables (
    id {id},
    namespace_id BIGINT NOT NULL REFERENCES namespaces (id),
    name {text} NOT NULL,
    location {text} NOT NULL UNIQUE,
    properties TEXT NOT NULL,
    managed BOOLEAN NOT NULL,
    declared BOOLEAN NOT NULL,
    registered BOOLEAN NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    UNIQUE (namespace_id, name)
);

CREATE TABLE doomed_folders (
    location {text} PRIMARY KEY,
    due_at BIGINT NOT NULL,
    transaction_id {text},
    reason {text} NOT NULL,
    claims BIGINT NOT NULL
);

CREATE INDEX doomed_folders_due ON doomed_folders (due_at);

CREATE INDEX doomed_folders_transaction ON doomed_folders (transaction_id);

-- table_id is no foreign key: what happened to a table outlives it, and ids are never given twice.
-- available_at is when it may be claimed: once due, or once the lease of the worker that runs it has ended.
CREATE TABLE transactions (
    id {text} PRIMARY KEY,
    kind {text} NOT NULL,
    status {text} NOT NULL,
    table_id BIGINT,
    payload TEXT NOT NULL,
    properties TEXT NOT NULL,
    error TEXT,
    attempts BIGINT NOT NULL,
    lease_owner {text},
    available_at BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);

CREATE INDEX transactions_claimable ON transactions (available_at) WHERE status IN ('Queued', 'Running');

CREATE INDEX transactions_unfinished ON transactions (table_id) WHERE status IN ('Queued', 'Running');

CREATE INDEX transactions_created ON transactions (created_at, id);

CREATE TABLE table_versions (
    table_id BIGINT NOT NULL REFERENCES tables (id) ON DELETE CASCADE,
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

CREATE INDEX table_versions_pending ON table_versions (created_at, table_id) WHERE NOT finalized;

CREATE TABLE uploads (
    id {text} PRIMARY KEY,
    table_id BIGINT NOT NULL REFERENCES tables (id) ON DELETE CASCADE,
    branch {text} NOT NULL,
    mode {text} NOT NULL,
    created_at BIGINT NOT NULL
);

CREATE INDEX uploads_table ON uploads (table_id);

CREATE INDEX uploads_created ON uploads (created_at);

CREATE TABLE upload_parts (
    upload_id {text} NOT NULL REFERENCES uploads (id) ON DELETE CASCADE,
    part_id {text} NOT NULL,
    fragments TEXT NOT NULL,
    num_rows BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (upload_id, part_id)
);

-- What all servers of one catalog share: 32 random bytes in hexadecimal.
CREATE TABLE secrets (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
