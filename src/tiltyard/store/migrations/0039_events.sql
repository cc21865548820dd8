-- What has changed, in order, to be told to others: written by triggers (`events/triggers.py`) in the transaction of the
-- change, while there is a row in event_streams. `id` is the order of writing; `position`, that of the stream, is given
-- once the change is committed. `kind`, `object_id` and `namespace_id` are the object that changed, as it was found then;
-- `path` is the JSON list of its names, `other_namespace_id` where a table was before it was moved.
CREATE TABLE events (
    id {id},
    position BIGINT UNIQUE,
    event_id {text} NOT NULL,
    at BIGINT NOT NULL,
    type {text} NOT NULL,
    kind {text} NOT NULL,
    object_id BIGINT,
    namespace_id BIGINT,
    other_namespace_id BIGINT,
    path TEXT,
    data TEXT NOT NULL
);

-- One row while changes are recorded. `name` is another one in each catalog, and after each restore; events up to
-- `lost_until` were deleted at the end of their retention. With `has_calls` the audit's records are events, too.
CREATE TABLE event_streams (
    name {text} PRIMARY KEY,
    last_position BIGINT NOT NULL,
    lost_until BIGINT NOT NULL,
    has_calls BOOLEAN NOT NULL,
    created_at BIGINT NOT NULL
);

-- Who gets events, and how far that has come: all up to `position` are acknowledged, or are dead letters. `missed` counts
-- those that were deleted before.
CREATE TABLE event_sinks (
    name {text} PRIMARY KEY,
    position BIGINT NOT NULL,
    missed BIGINT NOT NULL,
    attempts BIGINT NOT NULL,
    error TEXT,
    due_at BIGINT NOT NULL,
    sent_at BIGINT,
    lease_owner {text},
    lease_until BIGINT NOT NULL,
    created_at BIGINT NOT NULL
);

-- Events that a sink has refused, or did not take in all its attempts. `resend` is 1 for those that are to be sent again.
CREATE TABLE event_dead_letters (
    sink {text} NOT NULL REFERENCES event_sinks (name) ON DELETE CASCADE,
    event_id {text} NOT NULL,
    position BIGINT NOT NULL,
    body TEXT NOT NULL,
    error TEXT NOT NULL,
    failed_at BIGINT NOT NULL,
    resend BIGINT NOT NULL,
    PRIMARY KEY (sink, event_id)
);
