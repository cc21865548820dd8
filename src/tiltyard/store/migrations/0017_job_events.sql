-- A job that a caller has paused is claimed by nobody until it is resumed.
ALTER TABLE transactions ADD COLUMN paused_at BIGINT;
-- What happened to transactions: claims, pauses, ends. The store keeps the last ones of each.
CREATE TABLE job_events (
    transaction_id {text} NOT NULL REFERENCES transactions (id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    happened_at BIGINT NOT NULL,
    event TEXT NOT NULL,
    status TEXT NOT NULL,
    caused_by TEXT,
    attempt BIGINT NOT NULL,
    rows_processed BIGINT,
    message TEXT,
    PRIMARY KEY (transaction_id, number)
);
