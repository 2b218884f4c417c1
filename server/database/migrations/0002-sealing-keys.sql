-- expand
-- Keys that seal tokens which only the registry opens. The newest seals; the former ones open until their tokens have expired.
CREATE TABLE sealing_keys (
  id text PRIMARY KEY,
  key_sealed bytea NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);
