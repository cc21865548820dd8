-- Where the other servers of the catalog reach a server, "" where nothing says so, and the weight by which tables are
-- shared out among those that have a URL.
ALTER TABLE processes ADD COLUMN url TEXT NOT NULL DEFAULT '';
ALTER TABLE processes ADD COLUMN weight BIGINT NOT NULL DEFAULT 0;
