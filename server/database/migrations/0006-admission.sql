-- contract
-- Attempts under way apart from failed ones, and buckets for client addresses that refill evenly.

ALTER TABLE attempts
  ADD COLUMN under_way integer NOT NULL DEFAULT 0,
  -- From then on those under way count no longer: whoever counted them is gone.
  ADD COLUMN under_way_until timestamptz NOT NULL DEFAULT '-infinity';
DROP FUNCTION attempts_count;

CREATE TABLE buckets (
  subject bytea PRIMARY KEY,
  -- How full it was at that time; it empties evenly.
  level double precision NOT NULL,
  updated_at timestamptz NOT NULL
) WITH (fillfactor = 70);

-- Which accounts know an address.
CREATE INDEX known_addresses_address ON known_addresses (address, seen_at);
