-- expand
-- Every server forgets addresses every 10 minutes: by index that reads what has lapsed and nothing else. While it is made,
-- about a second for each million users, sign-ins wait or are told to come again; where that is too long, make it ahead with
-- CREATE INDEX CONCURRENTLY under this name.

CREATE INDEX IF NOT EXISTS known_addresses_seen ON known_addresses (seen_at);
