-- Limits of what a principal (then namespace_id is 0), or a namespace with all below it (then principal is ''), may use.
-- The triggers that record changes as events are created here, too, in place of earlier ones (`events/triggers.py`).
CREATE TABLE quotas (
    principal {text} NOT NULL,
    namespace_id BIGINT NOT NULL,
    resource {text} NOT NULL,
    soft BIGINT,
    hard BIGINT,
    set_by {text} NOT NULL,
    set_at BIGINT NOT NULL,
    PRIMARY KEY (principal, namespace_id, resource)
);

-- What was used in a time of so many seconds (a day, a minute) from started_at (ms since 1970) on. namespace_id is 0 where
-- a request named none, and is no foreign key: what was used stays told when the namespace is gone.
CREATE TABLE usage_counts (
    seconds BIGINT NOT NULL,
    started_at BIGINT NOT NULL,
    principal {text} NOT NULL,
    namespace_id BIGINT NOT NULL,
    requests BIGINT NOT NULL,
    rows_written BIGINT NOT NULL,
    PRIMARY KEY (seconds, started_at, principal, namespace_id)
);

-- Who has created a table, '' where nobody knows, and the bytes of its latest version when it was last measured.
CREATE TABLE table_usage (
    table_id BIGINT PRIMARY KEY,
    created_by {text} NOT NULL,
    bytes BIGINT NOT NULL,
    measured_at BIGINT NOT NULL
);
