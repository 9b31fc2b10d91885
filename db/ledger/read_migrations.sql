-- read_migrations: what has been applied, by dbmate or by our own migrator; they keep the same table.
--
-- Returns version.

-- name: read_migrations
SELECT version
  FROM schema_migrations
 ORDER BY version;
