-- contract
-- An answer that was saved long after sign-up counts a day later; until then the one before it does.

ALTER TABLE answers
  ALTER COLUMN answer_hash DROP NOT NULL,
  ADD COLUMN next_hash text,
  ADD COLUMN next_counts_at timestamptz,
  ADD CHECK (answer_hash IS NOT NULL OR next_hash IS NOT NULL),
  ADD CHECK ((next_hash IS NULL) = (next_counts_at IS NULL));
