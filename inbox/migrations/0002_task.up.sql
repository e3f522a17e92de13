-- Messages whose effect is outside of the database, while they are worked on: see
-- NewTasks. A row goes when its message is done.
CREATE TABLE inbox_task (
  key         uuid PRIMARY KEY,                   -- as in inbox
  fingerprint uuid,
  topic       uuid,
  owner       uuid NOT NULL,                      -- of the try, fresh for each one
  lease_until timestamptz NOT NULL,               -- until then somebody works on it, by clock_timestamp()
  started_at  timestamptz NOT NULL DEFAULT now(), -- the first time
  off         bigint,
  token       bigint NOT NULL,                    -- fence of the try; 0: none
  part        int,
  scope       int NOT NULL,
  starts      int NOT NULL CHECK (starts > 0),
  state       text NOT NULL CHECK (state IN ('running', 'parked')),
  id          text NOT NULL
);
