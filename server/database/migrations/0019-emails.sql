-- expand
-- Which e-mails go first, and a bound for recovery requests that the bucket of their network doesn't count.

ALTER TABLE emails
  -- 0 for a first attempt, 1 for a retry, 2 for any attempt for an account that isn't active: the lowest goes first.
  ADD COLUMN priority integer NOT NULL DEFAULT 0;
DROP INDEX emails_due;
CREATE INDEX emails_due ON emails (priority, next_attempt_at) WHERE next_attempt_at IS NOT NULL;

-- For an account and a network one waits with the registered address, and one with another.
CREATE UNIQUE INDEX emails_exempt_request
  ON emails ((parameters ->> 'usernameKey'), (parameters ->> 'network'), (parameters ->> 'registered'))
  WHERE kind = 'recovery-request' AND parameters ->> 'network' IS NOT NULL;
