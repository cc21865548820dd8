-- Jobs that are queued by themselves, as their definer (a principal as JSON): at times, or after commits of tables.
-- namespace_id and table_id are no foreign keys: a schedule stays with a dropped namespace, or the dropped table of its
-- job, for as long as that can be restored, and rests meanwhile. due_at is when the job is next queued, NULL for not
-- before a commit; rests_until is when it is looked at again, and so the lease of whoever looks at it. definition and
-- outcome (of the last time, whose job is last_job) are JSON.
CREATE TABLE schedules (
    id {text} PRIMARY KEY,
    namespace_id BIGINT NOT NULL,
    name {text} NOT NULL,
    table_id BIGINT,
    definition TEXT NOT NULL,
    definer TEXT NOT NULL,
    paused BOOLEAN NOT NULL,
    debounce_ms BIGINT NOT NULL,
    due_at BIGINT,
    rests_until BIGINT NOT NULL,
    last_job {text},
    outcome TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    UNIQUE (namespace_id, name)
);

CREATE INDEX schedules_due ON schedules (due_at) WHERE due_at IS NOT NULL AND NOT paused;

CREATE INDEX schedules_table ON schedules (table_id);

-- The tables whose commits make a schedule due.
CREATE TABLE schedule_sources (
    table_id BIGINT NOT NULL,
    schedule_id {text} NOT NULL REFERENCES schedules (id) ON DELETE CASCADE,
    PRIMARY KEY (table_id, schedule_id)
);

CREATE INDEX schedule_sources_schedule ON schedule_sources (schedule_id);
