-- Servers and workers that are alive, each with its last heartbeat. A process that ends in order takes its row away; one
-- that was killed leaves it behind, until another process deletes it.
CREATE TABLE processes (
    id {text} PRIMARY KEY,
    kind TEXT NOT NULL,
    host TEXT NOT NULL,
    pid BIGINT NOT NULL,
    version TEXT NOT NULL,
    threads BIGINT NOT NULL,
    drivers BIGINT NOT NULL,
    running BIGINT NOT NULL,
    started_at BIGINT NOT NULL,
    seen_at BIGINT NOT NULL
);
