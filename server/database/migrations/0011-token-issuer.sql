-- expand
-- Who issues the tokens of this registry and for whom, so that no process decides it for itself.

-- Empty until the first process that starts, or `auth-admin install`, fills it in.
CREATE TABLE token_issuer (
  single boolean PRIMARY KEY DEFAULT true CHECK (single),
  issuer text NOT NULL,
  audience text NOT NULL
);
