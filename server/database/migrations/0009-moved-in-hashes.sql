-- contract
-- Once this ran, hashes of passwords that other systems made, as imports bring them, are sealed: 1.0.0 can't read them then. The
-- index finds those that are bare yet.
CREATE INDEX IF NOT EXISTS users_bare_hash ON users (id) WHERE password_hash LIKE '$2%';
