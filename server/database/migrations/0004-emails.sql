-- contract
-- The outbox under the name of what it holds.

ALTER TABLE letters RENAME TO emails;
ALTER INDEX letters_pkey RENAME TO emails_pkey;
ALTER INDEX letters_due RENAME TO emails_due;
ALTER SEQUENCE letters_id_seq RENAME TO emails_id_seq;
