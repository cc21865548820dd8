-- Rows that a function failed on, by the job that skipped them: of each fragment the first ones (records, JSON).
CREATE TABLE function_errors (
    transaction_id {text} NOT NULL REFERENCES transactions (id) ON DELETE CASCADE,
    table_id BIGINT NOT NULL,
    fragment_id BIGINT NOT NULL,
    column_name {text} NOT NULL,
    rows_skipped BIGINT NOT NULL,
    rows_recorded BIGINT NOT NULL,
    records TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (transaction_id, fragment_id)
);

CREATE INDEX function_errors_table ON function_errors (table_id, created_at);
