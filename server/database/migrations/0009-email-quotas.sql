-- contract
-- How many e-mails went out, notices that wait for their recipient's quota, and attempts of mailed keys by client address.

-- Subjects are keyed digests.
CREATE TABLE email_quotas (
  subject bytea PRIMARY KEY,
  -- The latest times, oldest first: as many as the widest limit needs.
  sent_at timestamptz[] NOT NULL
) WITH (fillfactor = 70);

-- Of one kind a user has at most one that waits: later ones are merged into it.
CREATE UNIQUE INDEX emails_held_notice ON emails ((parameters ->> 'userId'), (parameters ->> 'notice'))
  WHERE kind = 'held-notice';

-- Counted in attempts now.
ALTER TABLE mailed_keys DROP COLUMN tries;
