-- ask_primary: a statement that writes nothing, but makes the transaction it stands in one that could.
--
-- A replica answers what only reads from its own copy, which may lag behind what was just written. With this step in front
-- the primary answers. Included where a readback has to see the write before it.

-- name: ask_primary
DELETE FROM lease_fence WHERE false;
