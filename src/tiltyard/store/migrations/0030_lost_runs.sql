-- A run of a job that its submitter's own process drives (is_local) is adopted by no worker: where its lease ends, it is
-- Lost. Of transactions with one run_key, one may be unfinished.
ALTER TABLE transactions ADD COLUMN is_local BOOLEAN NOT NULL DEFAULT FALSE;

ALTER TABLE transactions ADD COLUMN run_key {text};

CREATE UNIQUE INDEX transactions_run_key ON transactions (run_key) WHERE status IN ('Queued', 'Running');

CREATE INDEX transactions_local ON transactions (available_at) WHERE is_local AND status IN ('Queued', 'Running');

DROP INDEX transactions_failed;

CREATE INDEX transactions_failed ON transactions (table_id) WHERE status IN ('Failed', 'Lost');
