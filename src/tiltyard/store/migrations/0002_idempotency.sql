-- Requests that came with a key: running under the lease of a server, or done, with the answer they got.
-- status and body are null while it runs; fingerprint is null until the whole body is known; table_id, branch and
-- version are what it committed, written with that commit; heard says whether the client was there for the answer.
CREATE TABLE requests (
    id {text} PRIMARY KEY,
    scope TEXT NOT NULL,
    fingerprint {text},
    owner {text} NOT NULL,
    lease_until BIGINT NOT NULL,
    attempts BIGINT NOT NULL,
    status BIGINT,
    body TEXT,
    table_id BIGINT,
    branch {text},
    version BIGINT,
    heard BOOLEAN NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);

CREATE INDEX requests_expiring ON requests (expires_at);

CREATE INDEX requests_running ON requests (owner) WHERE status IS NULL;

CREATE INDEX requests_unheard ON requests (fingerprint) WHERE NOT heard;
