-- expand
-- Accounts that their users signed up and never activated are erased some time after their last sign-in.

ALTER TABLE users
  -- When the last sign-in to such an account was, or its sign-up; NULL once it is activated, and for accounts that others made.
  ADD COLUMN unactivated_seen_at timestamptz;
CREATE INDEX users_unactivated ON users (unactivated_seen_at)
  WHERE unactivated_seen_at IS NOT NULL AND NOT active AND NOT suspended AND role <> 'ROLE_ADMIN';
