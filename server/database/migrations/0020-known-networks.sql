-- expand
-- Accounts know networks and devices, each with a count of its own. Whoever unlocks or erases an account finds them all.

ALTER TABLE attempts
  -- The count of the account that this one stands beside; NULL in that one itself, and where no account counts.
  ADD COLUMN account bytea;
CREATE INDEX attempts_account ON attempts (account) WHERE account IS NOT NULL;
