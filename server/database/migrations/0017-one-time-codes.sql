-- expand
-- Wrong one-time codes of an administrator, in 15 minutes and in a day, and the lock that they end in: it doesn't lapse.

ALTER TABLE totp_secrets
  ADD COLUMN failures integer NOT NULL DEFAULT 0,
  ADD COLUMN window_ends timestamptz NOT NULL DEFAULT '-infinity',
  ADD COLUMN day_failures integer NOT NULL DEFAULT 0,
  ADD COLUMN day_ends timestamptz NOT NULL DEFAULT '-infinity',
  ADD COLUMN locked_at timestamptz;
