-- expand
-- What names look like, so that nobody signs up as somebody else's look-alike.

-- NULL until the service makes them (at its start), since only it has Unicode's data.
ALTER TABLE users ADD COLUMN username_skeleton text, ADD COLUMN nickname_skeleton text;
-- By hash: nobody asks for their order, and they may have some KB.
CREATE INDEX users_username_skeleton ON users USING hash (username_skeleton);
CREATE INDEX users_nickname_skeleton ON users USING hash (nickname_skeleton);
CREATE INDEX users_without_skeleton ON users (id) WHERE username_skeleton IS NULL;
