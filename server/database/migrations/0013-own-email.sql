-- expand
-- Users change their own e-mail address, once they have seen the code that was mailed there.

ALTER TABLE mailed_keys
  DROP CONSTRAINT mailed_keys_purpose_check,
  ADD CONSTRAINT mailed_keys_purpose_check CHECK (purpose IN ('recovery', 'activation', 'email')),
  -- The address that a key of the purpose 'email' confirms.
  ADD COLUMN email text;
