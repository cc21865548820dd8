-- Versions that BatchDeleteTableVersions took out of a table's history: those from `first` to before `beyond`, of one
-- branch ('' is main). Their files stay until the retention time is over, whoever wrote them; so a version that storage
-- holds is listed only if none of these has it. They hang on the id of a table, as views do.
CREATE TABLE deleted_versions (
    table_id BIGINT NOT NULL,
    branch {text} NOT NULL,
    first BIGINT NOT NULL,
    beyond BIGINT NOT NULL,
    deleted_at BIGINT NOT NULL,
    PRIMARY KEY (table_id, branch, first)
);
