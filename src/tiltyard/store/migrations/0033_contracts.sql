-- Contracts of tables. A version is recorded only under the contract that its table has at that moment; `checks` says
-- what its rows were found to be, where there is something to say. `table_tests` has the results of tests of versions.
ALTER TABLE tables ADD COLUMN contract TEXT;

ALTER TABLE removed_tables ADD COLUMN contract TEXT;

ALTER TABLE table_versions ADD COLUMN checks TEXT;

ALTER TABLE removed_versions ADD COLUMN checks TEXT;

CREATE INDEX table_versions_checks ON table_versions (table_id, created_at) WHERE checks IS NOT NULL;

CREATE TABLE table_tests (
    table_id BIGINT NOT NULL,
    tested_at BIGINT NOT NULL,
    branch {text} NOT NULL,
    version BIGINT NOT NULL,
    requested_by TEXT NOT NULL,
    passed BOOLEAN NOT NULL,
    results TEXT NOT NULL,
    PRIMARY KEY (table_id, tested_at)
);
