-- expand
-- Whatever revokes a user's tokens discards the e-mails that wait to send it a key: by index, however many wait.

CREATE INDEX emails_owner ON emails ((coalesce(parameters ->> 'userId', parameters ->> 'usernameKey')));
