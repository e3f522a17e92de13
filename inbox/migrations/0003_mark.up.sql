-- Runs of offsets that are all decided: [first, next) of a partition. A delivery inside
-- a run is a duplicate, though its row of inbox may be gone. See Inbox.Mark.
CREATE TABLE inbox_mark (
  topic uuid NOT NULL,                            -- Kafka's topic ID: a topic made anew is another
  first bigint NOT NULL CHECK (first >= 0),
  next  bigint NOT NULL CHECK (next > first),     -- only grows
  seen  bigint NOT NULL CHECK (seen <= next),     -- what next was at the time "at"
  ripe  bigint NOT NULL CHECK (ripe <= seen),     -- what seen was before: rows below it may be removed
  at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  scope int NOT NULL,                             -- inbox_scope.id
  part  int NOT NULL CHECK (part >= 0),
  PRIMARY KEY (scope, topic, part, first)         -- for the claim: the runs of a partition up to an offset
) WITH (fillfactor = 50);

-- How far a purge has walked through a table. The lock on the row makes one process at a
-- time go on from there.
CREATE TABLE inbox_purge (
  scope int PRIMARY KEY,                          -- whose rows of inbox; 0: the rows of inbox_fence
  page  bigint NOT NULL DEFAULT 0 CHECK (page >= 0), -- where the next round begins, counted from 1; 0: the walk is over
  began timestamptz NOT NULL DEFAULT '-infinity'  -- when the last walk did
);

-- It kept the purge fast only until pages were used again: a range of pages that has held
-- old rows once is taken for old for ever.
DROP INDEX inbox_created_at;
