-- What a job of the pipeline has done so far, so that whoever takes it over does it not again.
CREATE TABLE job_parts (
    transaction_id {text} NOT NULL REFERENCES transactions (id) ON DELETE CASCADE,
    name {text} NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (transaction_id, name)
);

CREATE INDEX transactions_kind ON transactions (kind, created_at, id);
