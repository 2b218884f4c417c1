-- expand
-- A stolen token sets a new password without the old one: for a day after that it changes no e-mail address.

ALTER TABLE users
  -- When the password was set by a session of its user or of another; NULL when a session by a mailed key, an
  -- administrator with SetPassword, or the sign-up set it.
  ADD COLUMN password_updated_at timestamptz;
