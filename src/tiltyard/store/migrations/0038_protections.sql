-- What protects an object (a 'table' or a 'namespace' with the id of its record, or the 'server' with id 0) and all below
-- it. `operation` is '' for all kinds but approvals, which name an operation each,
-- and whether that removes its object.
CREATE TABLE protections (
    object_kind {text} NOT NULL,
    object_id BIGINT NOT NULL,
    kind {text} NOT NULL,
    operation {text} NOT NULL,
    removes BOOLEAN NOT NULL,
    reason TEXT NOT NULL,
    set_by {text} NOT NULL,
    set_at BIGINT NOT NULL,
    PRIMARY KEY (object_kind, object_id, kind, operation)
);

CREATE INDEX protections_kind ON protections (kind);

-- Calls that need the approval of a second principal: requested, decided, and then run once. `digest` is that of the call,
-- `request` what an approver reads of it. used_at is when it began to run.
CREATE TABLE approvals (
    id {text} PRIMARY KEY,
    operation {text} NOT NULL,
    object_kind {text} NOT NULL,
    object_id BIGINT NOT NULL,
    namespace_id BIGINT NOT NULL,
    digest {text} NOT NULL,
    request TEXT NOT NULL,
    requested_by {text} NOT NULL,
    requested_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    approved BOOLEAN,
    decided_by {text},
    decided_at BIGINT,
    used_at BIGINT
);

CREATE INDEX approvals_call ON approvals (requested_by, digest);

INSERT INTO generations (name, number) VALUES ('protections', 0);
