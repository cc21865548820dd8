-- Erasures of rows with their proof. The id is that of the transaction that does the work. `path` is the JSON list of the
-- table's names. `plan` (JSON) has what the job needs to go on, the condition and the values that are searched among it: it
-- is emptied when the erasure ends. `outcome` is '' until then; `report` is what the signature is of.
CREATE TABLE erasures (
    id {text} PRIMARY KEY,
    table_id BIGINT NOT NULL,
    namespace_id BIGINT NOT NULL,
    path TEXT NOT NULL,
    reference TEXT NOT NULL,
    requested_by {text} NOT NULL,
    requested_at BIGINT NOT NULL,
    ended_at BIGINT,
    outcome {text} NOT NULL,
    plan TEXT NOT NULL,
    report TEXT NOT NULL,
    signature TEXT NOT NULL
);

CREATE INDEX erasures_requested ON erasures (requested_at, id);
