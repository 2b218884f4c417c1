-- expand
-- Letters waiting to be sent, and the keys that letters carry.

-- A row says what a letter is for; keys are made when it is sent, so none is in here.
CREATE TABLE letters (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind text NOT NULL,
  parameters jsonb NOT NULL,
  locale text NOT NULL,
  attempts integer NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL DEFAULT now(),
  -- Null once it is given up.
  next_attempt_at timestamptz DEFAULT now(),
  last_error text
);
CREATE INDEX letters_due ON letters (next_attempt_at) WHERE next_attempt_at IS NOT NULL;

-- At most one key for each purpose: the newest.
CREATE TABLE mailed_keys (
  user_id integer NOT NULL REFERENCES users ON DELETE CASCADE,
  purpose text NOT NULL CHECK (purpose IN ('recovery', 'activation')),
  key_digest bytea NOT NULL,
  organization_id integer REFERENCES organizations ON DELETE CASCADE,
  tries integer NOT NULL DEFAULT 0,
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (user_id, purpose)
);
