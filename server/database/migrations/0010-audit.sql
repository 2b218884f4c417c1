-- contract
-- An audit log that many can write: events are staged without a lock that others wait for, and sealed into the chain in
-- rounds. Data keys, wrapped by the master key. A process of the version before can't append any more.

-- A key for each task, made or taken over by the first process that starts with the master key.
CREATE TABLE data_keys (
  name text PRIMARY KEY,
  wrapped bytea NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);

ALTER TABLE audit_events
  -- What is personal in an event enters its MAC as a digest of salt and value, so that both may be erased.
  ADD COLUMN salt bytea,
  ADD COLUMN address_digest bytea,
  -- NULL in events from before there were MACs.
  ADD COLUMN mac bytea;

-- Events that aren't part of the chain yet.
CREATE TABLE audit_staged (
  seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at timestamptz NOT NULL,
  action text NOT NULL,
  outcome text NOT NULL,
  reason text,
  actor text NOT NULL,
  actor_id integer,
  subject_id integer,
  object text,
  address text,
  request_id text,
  salt bytea,
  address_digest bytea,
  mac bytea NOT NULL,
  -- The transaction that staged it.
  tx bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_threshold = -1);
CREATE INDEX audit_staged_subject ON audit_staged (subject_id, tx) WHERE subject_id IS NOT NULL;

-- Where the chain begins: behind events that were deleted, or with the first one.
CREATE TABLE audit_checkpoint (
  single boolean PRIMARY KEY DEFAULT true CHECK (single),
  id bigint NOT NULL,
  hash bytea NOT NULL,
  -- Events up to this one are from before there were MACs.
  plain_to bigint NOT NULL,
  -- NULL until there is a key to sign it with.
  mac bytea
);
INSERT INTO audit_checkpoint (id, hash, plain_to) SELECT 0, '', id FROM audit_head;

-- Stages an event with its MAC, in the transaction of what it tells.
DROP FUNCTION audit_append;
CREATE FUNCTION audit_append(event jsonb) RETURNS void LANGUAGE sql AS $$
  INSERT INTO audit_staged (at, action, outcome, reason, actor, actor_id, subject_id, object, address, request_id,
    salt, address_digest, mac)
  SELECT clock_timestamp(), action, outcome, reason, actor, actor_id, subject_id, object, address, request_id,
    salt, address_digest, mac
  FROM jsonb_populate_record(NULL::audit_staged, event)
$$;

-- Nobody's tokens are revoked, or valid again, without a trace.
CREATE FUNCTION users_generation_recorded() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM audit_staged WHERE subject_id = NEW.id AND tx = pg_current_xact_id()::text::bigint) THEN
    RAISE check_violation USING CONSTRAINT = 'users_generation_recorded', TABLE = 'users',
      MESSAGE = format('the token generation of user %s changes without an event of that user in the audit log', NEW.id);
  END IF;
  RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER users_generation_recorded AFTER UPDATE ON users DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (OLD.token_generation IS DISTINCT FROM NEW.token_generation)
  EXECUTE FUNCTION users_generation_recorded();
