-- expand
-- Holders of desk, members suspended with their organization, keys to hand over, and e-mails that were sent.
ALTER TABLE users
  -- Whether Administration opens to the user what it opens to holders of desk.
  ADD COLUMN desk boolean NOT NULL DEFAULT false,
  -- Whether the user was suspended together with the other members of its organization.
  ADD COLUMN suspended_with_organization boolean NOT NULL DEFAULT false;

-- Both end with what they depend on, whatever changes it.
CREATE FUNCTION users_end_desk() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.desk := NEW.desk AND NEW.role = OLD.role AND NEW.active AND NOT NEW.suspended;
  NEW.suspended_with_organization := NEW.suspended_with_organization AND NEW.suspended;
  RETURN NEW;
END
$$;
CREATE TRIGGER users_end_desk BEFORE UPDATE OF role, active, suspended ON users
  FOR EACH ROW WHEN (OLD.desk OR OLD.suspended_with_organization) EXECUTE FUNCTION users_end_desk();

-- Whether the ROLE_INSTITUTION users of an organization may issue keys to its clients.
ALTER TABLE organizations ADD COLUMN may_issue_keys boolean NOT NULL DEFAULT false;

-- An issued key isn't mailed, but handed over.
ALTER TABLE mailed_keys DROP CONSTRAINT mailed_keys_purpose_check,
  ADD CONSTRAINT mailed_keys_purpose_check CHECK (purpose IN ('recovery', 'activation', 'email', 'issued'));

-- E-mails that were sent, without their texts, for 7 days.
CREATE TABLE sent_emails (
  -- That of the queue.
  id bigint PRIMARY KEY,
  kind text NOT NULL,
  user_id integer NOT NULL,
  created_at timestamptz NOT NULL,
  attempts integer NOT NULL,
  sent_at timestamptz NOT NULL DEFAULT now(),
  -- Of the mail server.
  answer text NOT NULL
);
CREATE INDEX sent_emails_user ON sent_emails (user_id, id);
CREATE INDEX sent_emails_sent_at ON sent_emails (sent_at);
