-- A mount is a namespace whose content another catalog has. Rows below it, marked by mount_id (the id of the mount's own
-- namespace), are no truth: they give the ids that grants, policies, jobs and versions refer to. foreign_id is the id
-- that the other catalog gives a table, where it gives one.
CREATE TABLE mounts (
    namespace_id BIGINT PRIMARY KEY REFERENCES namespaces (id) ON DELETE CASCADE,
    kind TEXT NOT NULL,
    settings TEXT NOT NULL,
    allowed_locations TEXT NOT NULL,
    max_age_ms BIGINT NOT NULL,
    managed BOOLEAN NOT NULL,
    vends_credentials BOOLEAN NOT NULL,
    origin TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);

ALTER TABLE namespaces ADD COLUMN mount_id BIGINT;

ALTER TABLE tables ADD COLUMN mount_id BIGINT;

ALTER TABLE tables ADD COLUMN foreign_id TEXT;

CREATE INDEX tables_foreign_id ON tables (mount_id, foreign_id) WHERE mount_id IS NOT NULL;

INSERT INTO generations (name, number) VALUES ('mounts', 0);
