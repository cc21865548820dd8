-- What was asked of the servers, one row for each object that a call named. `id` is made by the server that served the
-- call, so that a row which is written again is still one. No foreign keys: a record outlives what it is about.
CREATE TABLE audit (
    at BIGINT NOT NULL,
    id {text} NOT NULL,
    principal {text} NOT NULL,
    method {text} NOT NULL,
    operation {text} NOT NULL,
    object {text} NOT NULL,
    outcome {text} NOT NULL,
    status BIGINT NOT NULL,
    code BIGINT,
    request_id TEXT NOT NULL,
    address TEXT NOT NULL,
    micros BIGINT NOT NULL,
    context TEXT NOT NULL,
    PRIMARY KEY (at, id)
);

CREATE INDEX audit_object ON audit (object, at);

-- So that finished transactions which a version still names are found, and kept.
CREATE INDEX table_versions_transaction ON table_versions (transaction_id) WHERE transaction_id IS NOT NULL;

CREATE INDEX removed_versions_transaction ON removed_versions (transaction_id) WHERE transaction_id IS NOT NULL;
