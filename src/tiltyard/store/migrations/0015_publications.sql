-- A publication writes entries for tables of ours into another catalog, and keeps them in step. It is synced by whoever
-- holds its lease. fingerprint is that of our tables when all was last in step, '' before that.
CREATE TABLE publications (
    id {id},
    name {text} NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    settings TEXT NOT NULL,
    levels BIGINT,
    namespace TEXT,
    target TEXT NOT NULL,
    has_columns BOOLEAN NOT NULL,
    removing BOOLEAN NOT NULL,
    fingerprint TEXT NOT NULL,
    synced_at BIGINT,
    verified_at BIGINT NOT NULL,
    failures BIGINT NOT NULL,
    error TEXT,
    due_at BIGINT NOT NULL,
    lease_owner {text},
    lease_until BIGINT NOT NULL,
    created_at BIGINT NOT NULL
);

-- path is the JSON list of the entry's names in the other catalog. table_id is no foreign key: an entry outlives its
-- table until it is removed there. digest is that of what was written, '' until that is known to be there. marked is
-- FALSE where the other catalog keeps no properties, by which the entry could be told to be ours.
CREATE TABLE published_entries (
    publication_id BIGINT NOT NULL REFERENCES publications (id) ON DELETE CASCADE,
    path {text} NOT NULL,
    table_id BIGINT NOT NULL,
    location TEXT NOT NULL,
    digest TEXT NOT NULL,
    marked BOOLEAN NOT NULL,
    PRIMARY KEY (publication_id, path)
);

-- Why a table has no entry, or not the one that it should have; path is that of the table in this catalog.
CREATE TABLE publication_problems (
    publication_id BIGINT NOT NULL REFERENCES publications (id) ON DELETE CASCADE,
    table_id BIGINT NOT NULL,
    path TEXT NOT NULL,
    problem TEXT NOT NULL,
    PRIMARY KEY (publication_id, table_id)
);
