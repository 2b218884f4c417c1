-- expand
-- Services with redirect URIs are clients of OpenID Connect, at which users sign in.
ALTER TABLE services
  ADD COLUMN redirect_uris text[] NOT NULL DEFAULT '{}',
  ADD COLUMN post_logout_uris text[] NOT NULL DEFAULT '{}',
  -- Without a secret, and therefore always with PKCE: apps on devices, and in browsers.
  ADD COLUMN public boolean NOT NULL DEFAULT false,
  -- How the client is called for people; empty: by its name.
  ADD COLUMN title text NOT NULL DEFAULT '';

-- Keys of RSA, which every client knows, for ID tokens and nothing else.
CREATE TABLE id_token_keys (
  kid text PRIMARY KEY,
  public_jwk jsonb NOT NULL,
  private_sealed bytea NOT NULL,
  -- From here on the key signs, until the next one does.
  signs_at timestamptz NOT NULL
);

-- A row is a line of tokens: of a client, or of an app that stays signed in. The ids of lines of 1.0.0, which are those of sessions,
-- are none of these.
ALTER TABLE refreshed_sessions
  -- The number of the token that the newest was issued for.
  ADD COLUMN former integer,
  -- When the newest token was issued.
  ADD COLUMN issued_at timestamptz,
  -- The service at which the user signed in; NULL for an app of the registry.
  ADD COLUMN service_id integer REFERENCES services ON DELETE CASCADE;
CREATE INDEX refreshed_sessions_service ON refreshed_sessions (service_id) WHERE service_id IS NOT NULL;
