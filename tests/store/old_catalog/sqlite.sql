BEGIN TRANSACTION;
CREATE TABLE api_keys (
    id TEXT PRIMARY KEY,
    principal TEXT NOT NULL REFERENCES principals (name),
    hash TEXT NOT NULL,
    note TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT,
    last_used_at BIGINT
);
INSERT INTO "api_keys" VALUES('0123456789abcdef','ann','0f007385b6f9d4b7eeb2748605afe1a984a0a3bfa3f014d09e2a784ce9e5cd1a','',1795502927947,4795502927947,NULL,NULL);
CREATE TABLE audit (
    at BIGINT NOT NULL,
    id TEXT NOT NULL,
    principal TEXT NOT NULL,
    method TEXT NOT NULL,
    operation TEXT NOT NULL,
    object TEXT NOT NULL,
    outcome TEXT NOT NULL,
    status BIGINT NOT NULL,
    code BIGINT,
    request_id TEXT NOT NULL,
    address TEXT NOT NULL,
    micros BIGINT NOT NULL,
    context TEXT NOT NULL,
    PRIMARY KEY (at, id)
);
CREATE TABLE clone_sources (
    table_id BIGINT NOT NULL,
    location TEXT NOT NULL,
    PRIMARY KEY (location, table_id)
);
CREATE TABLE deleted_versions (
    table_id BIGINT NOT NULL,
    branch TEXT NOT NULL,
    first BIGINT NOT NULL,
    beyond BIGINT NOT NULL,
    deleted_at BIGINT NOT NULL,
    PRIMARY KEY (table_id, branch, first)
);
CREATE TABLE doomed_folders (
    location TEXT PRIMARY KEY,
    due_at BIGINT NOT NULL,
    transaction_id TEXT,
    reason TEXT NOT NULL,
    claims BIGINT NOT NULL
);
CREATE TABLE generations (
    name TEXT PRIMARY KEY,
    number BIGINT NOT NULL
);
INSERT INTO "generations" VALUES('identity',2);
INSERT INTO "generations" VALUES('grants',3);
CREATE TABLE grants (
    grantee TEXT NOT NULL,
    kind TEXT NOT NULL,
    object_id BIGINT NOT NULL,
    privileges BIGINT NOT NULL,
    granted_by TEXT NOT NULL,
    granted_at BIGINT NOT NULL,
    PRIMARY KEY (grantee, kind, object_id)
);
INSERT INTO "grants" VALUES('role:analysts','namespace',2,2,'everybody',1795502927952);
CREATE TABLE job_parts (
    transaction_id TEXT NOT NULL REFERENCES transactions (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (transaction_id, name)
);
CREATE TABLE namespaces (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    parent_id BIGINT REFERENCES namespaces (id),
    name TEXT NOT NULL,
    properties TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    UNIQUE (parent_id, name),
    CHECK ((id = 1) = (parent_id IS NULL))
);
INSERT INTO "namespaces" VALUES(1,NULL,'','{}',0);
INSERT INTO "namespaces" VALUES(2,1,'team','{"owner":"ann"}',1795502927618);
INSERT INTO "namespaces" VALUES(3,2,'inner','{}',1795502927618);
CREATE TABLE policies (
    table_id BIGINT NOT NULL,
    name TEXT NOT NULL,
    document TEXT NOT NULL,
    set_by TEXT NOT NULL,
    set_at BIGINT NOT NULL,
    PRIMARY KEY (table_id, name)
);
INSERT INTO "policies" VALUES(1,'some','{"filter":"id < 3","masks":[],"exempt_roles":[]}','everybody',1795502927969);
CREATE TABLE principals (
    name TEXT PRIMARY KEY,
    administrator BOOLEAN NOT NULL,
    disabled BOOLEAN NOT NULL,
    created_at BIGINT NOT NULL
);
INSERT INTO "principals" VALUES('ann',0,0,1795502927947);
CREATE TABLE removed_namespaces (
    id BIGINT PRIMARY KEY,
    removal TEXT NOT NULL,
    top BOOLEAN NOT NULL,
    parent_id BIGINT NOT NULL,
    path TEXT NOT NULL,
    properties TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    removed_at BIGINT NOT NULL,
    due_at BIGINT NOT NULL
);
CREATE TABLE removed_tables (
    id BIGINT PRIMARY KEY,
    removal TEXT,
    namespace TEXT NOT NULL,
    namespace_id BIGINT NOT NULL,
    name TEXT NOT NULL,
    location TEXT NOT NULL,
    properties TEXT NOT NULL,
    managed BOOLEAN NOT NULL,
    declared BOOLEAN NOT NULL,
    registered BOOLEAN NOT NULL,
    created_at BIGINT NOT NULL,
    dropped BOOLEAN NOT NULL,
    removed_at BIGINT NOT NULL,
    due_at BIGINT NOT NULL
);
CREATE TABLE removed_versions (
    table_id BIGINT NOT NULL REFERENCES removed_tables (id) ON DELETE CASCADE,
    branch TEXT NOT NULL,
    version BIGINT NOT NULL,
    staged_path TEXT NOT NULL,
    manifest_path TEXT NOT NULL,
    manifest_size BIGINT,
    e_tag TEXT,
    metadata TEXT NOT NULL,
    naming_scheme TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    finalized BOOLEAN NOT NULL,
    transaction_id TEXT, manifest BLOB,
    PRIMARY KEY (table_id, branch, version)
);
CREATE TABLE requests (
    id TEXT PRIMARY KEY,
    scope TEXT NOT NULL,
    fingerprint TEXT,
    owner TEXT NOT NULL,
    lease_until BIGINT NOT NULL,
    attempts BIGINT NOT NULL,
    status BIGINT,
    body TEXT,
    table_id BIGINT,
    branch TEXT,
    version BIGINT,
    heard BOOLEAN NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE TABLE role_members (
    role TEXT NOT NULL REFERENCES roles (name) ON DELETE CASCADE,
    member TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (role, member)
);
INSERT INTO "role_members" VALUES('analysts','principal:ann',1795502927951);
CREATE TABLE roles (
    name TEXT PRIMARY KEY,
    created_at BIGINT NOT NULL
);
INSERT INTO "roles" VALUES('analysts',1795502927934);
CREATE TABLE schema_migrations (version BIGINT PRIMARY KEY, applied_at BIGINT NOT NULL);
INSERT INTO "schema_migrations" VALUES(1,1795502927599);
INSERT INTO "schema_migrations" VALUES(2,1795502927600);
INSERT INTO "schema_migrations" VALUES(3,1795502927601);
INSERT INTO "schema_migrations" VALUES(4,1795502927602);
INSERT INTO "schema_migrations" VALUES(5,1795502927602);
INSERT INTO "schema_migrations" VALUES(6,1795502927603);
INSERT INTO "schema_migrations" VALUES(7,1795502927603);
INSERT INTO "schema_migrations" VALUES(8,1795502927603);
INSERT INTO "schema_migrations" VALUES(9,1795502927603);
INSERT INTO "schema_migrations" VALUES(10,1795502927604);
INSERT INTO "schema_migrations" VALUES(11,1795502927604);
INSERT INTO "schema_migrations" VALUES(12,1795502927604);
INSERT INTO "schema_migrations" VALUES(13,1795502927605);
CREATE TABLE secrets (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
INSERT INTO "secrets" VALUES('paging','c442c65631ed2d5e82413bfd44219e7fffb5a26e538d45d68033347a8d169ac5');
CREATE TABLE signing_keys (
    id TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE TABLE table_versions (
    table_id BIGINT NOT NULL REFERENCES tables (id) ON DELETE CASCADE,
    branch TEXT NOT NULL,
    version BIGINT NOT NULL,
    staged_path TEXT NOT NULL,
    manifest_path TEXT NOT NULL,
    manifest_size BIGINT,
    e_tag TEXT,
    metadata TEXT NOT NULL,
    naming_scheme TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    finalized BOOLEAN NOT NULL,
    transaction_id TEXT, manifest BLOB,
    PRIMARY KEY (table_id, branch, version)
);
INSERT INTO "table_versions" VALUES(1,'',1,'@ROOT@/words-e08519f51c8f4762a321949dc045f3ff.lance/_versions/18446744073709551614.manifest-e56768d4-0181-4880-be7f-697ec76795fc','_versions/18446744073709551614.manifest',442,'98a152-661001a31ea91-1ba','{}','V2',1795502927641,1,NULL,NULL);
INSERT INTO "table_versions" VALUES(1,'',2,'@ROOT@/words-e08519f51c8f4762a321949dc045f3ff.lance/_versions/18446744073709551613.manifest-75fed69d-17aa-4bc6-ac25-52969ec4a1cf','_versions/18446744073709551613.manifest',463,'98a156-661001a321971-1cf','{}','V2',1795502927652,1,NULL,NULL);
INSERT INTO "table_versions" VALUES(1,'',3,'@ROOT@/words-e08519f51c8f4762a321949dc045f3ff.lance/_versions/18446744073709551612.manifest-e4e35d33-31e5-4bb2-8dc6-77a2b89fd7ba','_versions/18446744073709551612.manifest',665,'98a15b-661001a3257f1-299','{}','V2',1795502927671,1,NULL,NULL);
INSERT INTO "table_versions" VALUES(1,'side',2,'@ROOT@/words-e08519f51c8f4762a321949dc045f3ff.lance/tree/side/_versions/18446744073709551613.manifest-54257e29-2bf8-4855-b9cf-48e0419b01a1','tree/side/_versions/18446744073709551613.manifest',538,'98a164-661001a329671-21a','{}','V2',1795502927685,1,NULL,NULL);
INSERT INTO "table_versions" VALUES(2,'',1,'@ROOT@/plain-00e6fe1981a54de38effbaf32d0b8a8e.lance/_versions/18446744073709551614.manifest-daa4ca56-27c8-4aad-b5ac-0697e7e13a1a','_versions/18446744073709551614.manifest',442,'98a170-661001a32d4f1-1ba','{}','V2',1795502927709,1,NULL,NULL);
INSERT INTO "table_versions" VALUES(2,'',2,'@ROOT@/plain-00e6fe1981a54de38effbaf32d0b8a8e.lance/_versions/18446744073709551613.manifest-0a3eb019-2826-4fbf-b325-8fbc765fff5b','_versions/18446744073709551613.manifest',599,'98a177-661001a35ac66-257','{}','V2',1795502927902,1,NULL,NULL);
CREATE TABLE tables (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace_id BIGINT NOT NULL REFERENCES namespaces (id),
    name TEXT NOT NULL,
    location TEXT NOT NULL UNIQUE,
    properties TEXT NOT NULL,
    managed BOOLEAN NOT NULL,
    declared BOOLEAN NOT NULL,
    registered BOOLEAN NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    UNIQUE (namespace_id, name)
);
INSERT INTO "tables" VALUES(1,2,'words','@ROOT@/words-e08519f51c8f4762a321949dc045f3ff.lance','{}',1,0,0,1795502927628,1795502927643);
INSERT INTO "tables" VALUES(2,1,'plain','@ROOT@/plain-00e6fe1981a54de38effbaf32d0b8a8e.lance','{}',1,0,0,1795502927687,1795502927710);
INSERT INTO "tables" VALUES(3,2,'declared','@ROOT@/declared-16fcb5a87f7142c6b8251ba5510c877b.lance','{}',1,1,0,1795502927929,1795502927929);
CREATE TABLE transactions (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    status TEXT NOT NULL,
    table_id BIGINT,
    payload TEXT NOT NULL,
    properties TEXT NOT NULL,
    error TEXT,
    attempts BIGINT NOT NULL,
    lease_owner TEXT,
    available_at BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
, asked_by TEXT);
INSERT INTO "transactions" VALUES('afbd9d3a-d63f-4bd0-a03a-088c7405a8a0','create_index','Succeeded',2,'{"location":"@ROOT@/plain-00e6fe1981a54de38effbaf32d0b8a8e.lance","branch":null,"column":"id","name":"by_id","index_type":"BTREE","parameters":{},"replaces":false}','{"index_name":"by_id","column":"id","index_type":"BTREE","progress":"1.0","index_uuid":"df72d341-6105-4e9d-8aac-13d8d106d256","stage":"build","num_indexed_rows":"3"}',NULL,1,NULL,1795502927914,1795502927719,1795502927915,'everybody');
CREATE TABLE upload_parts (
    upload_id TEXT NOT NULL REFERENCES uploads (id) ON DELETE CASCADE,
    part_id TEXT NOT NULL,
    fragments TEXT NOT NULL,
    num_rows BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (upload_id, part_id)
);
CREATE TABLE uploads (
    id TEXT PRIMARY KEY,
    table_id BIGINT NOT NULL REFERENCES tables (id) ON DELETE CASCADE,
    branch TEXT NOT NULL,
    mode TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE TABLE views (
    table_id BIGINT NOT NULL PRIMARY KEY,
    definition TEXT NOT NULL,
    definer TEXT NOT NULL
);
CREATE INDEX doomed_folders_due ON doomed_folders (due_at);
CREATE INDEX doomed_folders_transaction ON doomed_folders (transaction_id);
CREATE INDEX transactions_claimable ON transactions (available_at) WHERE status IN ('Queued', 'Running');
CREATE INDEX transactions_unfinished ON transactions (table_id) WHERE status IN ('Queued', 'Running');
CREATE INDEX transactions_created ON transactions (created_at, id);
CREATE INDEX uploads_table ON uploads (table_id);
CREATE INDEX uploads_created ON uploads (created_at);
CREATE INDEX requests_expiring ON requests (expires_at);
CREATE INDEX requests_running ON requests (owner) WHERE status IS NULL;
CREATE INDEX removed_tables_name ON removed_tables (namespace, name);
CREATE INDEX removed_tables_location ON removed_tables (location);
CREATE INDEX removed_tables_removal ON removed_tables (removal);
CREATE INDEX removed_tables_removed ON removed_tables (removed_at, id);
CREATE INDEX removed_tables_due ON removed_tables (due_at) WHERE NOT dropped;
CREATE INDEX removed_namespaces_removal ON removed_namespaces (removal);
CREATE INDEX removed_namespaces_path ON removed_namespaces (path) WHERE top;
CREATE INDEX removed_namespaces_removed ON removed_namespaces (removed_at, id) WHERE top;
CREATE INDEX removed_namespaces_due ON removed_namespaces (due_at);
CREATE INDEX api_keys_principal ON api_keys (principal);
CREATE INDEX signing_keys_created ON signing_keys (created_at);
CREATE INDEX audit_object ON audit (object, at);
CREATE INDEX table_versions_transaction ON table_versions (transaction_id) WHERE transaction_id IS NOT NULL;
CREATE INDEX removed_versions_transaction ON removed_versions (transaction_id) WHERE transaction_id IS NOT NULL;
CREATE INDEX role_members_member ON role_members (member);
CREATE INDEX grants_object ON grants (kind, object_id);
CREATE INDEX transactions_kind ON transactions (kind, created_at, id);
CREATE INDEX table_versions_pending ON table_versions (table_id, created_at) WHERE NOT finalized;
CREATE INDEX requests_unheard ON requests (fingerprint) WHERE NOT heard OR status IS NULL;
CREATE INDEX transactions_failed ON transactions (table_id) WHERE status = 'Failed';
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('namespaces',3);
INSERT INTO "sqlite_sequence" VALUES('tables',3);
COMMIT;
