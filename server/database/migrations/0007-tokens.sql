-- contract
-- The longest lifetime of tokens that a key signed, so that no setting of a process decides how long it must be known.

-- Nobody knows what was issued before: 30 days is the most that any setting allows.
ALTER TABLE signing_keys ADD COLUMN token_ttl integer NOT NULL DEFAULT 2592000;
ALTER TABLE signing_keys ALTER COLUMN token_ttl DROP DEFAULT;
