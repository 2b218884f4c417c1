-- expand
-- The key that was mailed before the newest one stays valid until its own end: mails arrive in any order.
ALTER TABLE mailed_keys
  ADD COLUMN former_digest bytea,
  ADD COLUMN former_expires_at timestamptz;

-- Finds the users that a proved address belongs to.
CREATE INDEX IF NOT EXISTS users_proved_email ON users (lower(email)) WHERE email_proved;
