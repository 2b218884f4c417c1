-- expand
-- Counts of attempts, addresses people signed in from, signing keys, and the record of events.

-- Subjects are keyed digests: an unknown name may be a mistyped password.
CREATE TABLE attempts (
  subject bytea PRIMARY KEY,
  count integer NOT NULL,
  window_ends timestamptz NOT NULL
) WITH (fillfactor = 70);

-- Counts one attempt against each subject, in the order given, so that parallel calls never deadlock.
CREATE FUNCTION attempts_count(subjects bytea[], seconds integer)
RETURNS TABLE (place bigint, count integer, seconds_left double precision) LANGUAGE sql AS $$
  WITH listed AS (
    SELECT s.subject, s.place FROM unnest(subjects) WITH ORDINALITY AS s (subject, place) ORDER BY s.place
  ), counted AS (
    INSERT INTO attempts AS a (subject, count, window_ends)
    SELECT subject, 1, clock_timestamp() + make_interval(secs => seconds) FROM listed
    ON CONFLICT (subject) DO UPDATE SET
      count = CASE WHEN a.window_ends <= clock_timestamp() THEN 1 ELSE least(a.count + 1, 1000000) END,
      window_ends = CASE WHEN a.window_ends <= clock_timestamp() THEN excluded.window_ends ELSE a.window_ends END
    RETURNING a.subject, a.count, a.window_ends
  )
  SELECT listed.place, counted.count, extract(epoch FROM counted.window_ends - clock_timestamp())::double precision
  FROM counted JOIN listed USING (subject)
$$;

CREATE TABLE known_addresses (
  user_id integer NOT NULL REFERENCES users ON DELETE CASCADE,
  address bytea NOT NULL,
  seen_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (user_id, address)
);

CREATE TABLE signing_keys (
  kid text PRIMARY KEY,
  public_jwk jsonb NOT NULL,
  private_sealed bytea NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  -- Published from the start, signs from here on until a newer one does.
  signs_at timestamptz NOT NULL,
  -- Until the last token it signed has expired; null while no successor is planned.
  verifies_until timestamptz
);

CREATE TABLE audit_events (
  id bigint PRIMARY KEY,
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
  hash bytea NOT NULL
);
CREATE INDEX audit_events_subject ON audit_events (subject_id, id) WHERE subject_id IS NOT NULL;

-- The newest link of the chain. Locking it gives events their order.
CREATE TABLE audit_head (
  single boolean PRIMARY KEY DEFAULT true CHECK (single),
  id bigint NOT NULL,
  hash bytea NOT NULL
);
INSERT INTO audit_head (id, hash) VALUES (0, '');

-- A link: what the event says, and the link before it.
CREATE FUNCTION audit_hash(event audit_events, previous bytea) RETURNS bytea LANGUAGE sql STABLE AS $$
  SELECT sha256(previous || convert_to(jsonb_build_array(event.id, extract(epoch FROM event.at), event.action,
    event.outcome, event.reason, event.actor, event.actor_id, event.subject_id, event.object, event.address,
    event.request_id)::text, 'UTF8'))
$$;

-- Appends an event. Call it last in a transaction: it holds the chain until the end.
CREATE FUNCTION audit_append(event jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  head audit_head;
  added audit_events;
BEGIN
  SELECT * INTO STRICT head FROM audit_head FOR UPDATE;
  added := jsonb_populate_record(NULL::audit_events, event);
  added.id := head.id + 1;
  added.at := clock_timestamp();
  added.hash := audit_hash(added, head.hash);
  INSERT INTO audit_events SELECT added.*;
  UPDATE audit_head SET id = added.id, hash = added.hash;
  RETURN added.id;
END
$$;
