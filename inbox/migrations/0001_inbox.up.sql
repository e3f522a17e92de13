-- Names of consumers, so that a row of inbox can be short.
CREATE TABLE inbox_scope (
  id       int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant   text NOT NULL, -- empty: none
  consumer text NOT NULL CHECK (consumer <> ''),
  UNIQUE (tenant, consumer)
);

-- One row per message. Inserted in the transaction of its effect and not updated: a row
-- means decided and committed. Wide columns come first, so that none is padded.
CREATE TABLE inbox (
  key         uuid PRIMARY KEY,               -- hash of (tenant, consumer, message ID)
  fingerprint uuid,                           -- hash of what two deliveries must have in common; NULL: not compared
  topic       uuid,                           -- Kafka's topic ID; NULL: not from Kafka
  created_at  timestamptz NOT NULL DEFAULT now(),
  off         bigint CHECK (off >= 0),        -- offset in the partition
  part        int CHECK (part >= 0),          -- partition of the topic
  scope       int NOT NULL,                   -- inbox_scope.id; no foreign key, which would lock that row for each insert
  dead        boolean NOT NULL DEFAULT false, -- decided by giving up: there is a dead letter
  id          text NOT NULL,                  -- the message ID, cut and escaped, for people
  result      bytea,                          -- what the handler answered; NULL: nothing was kept
  CONSTRAINT inbox_position CHECK (num_nulls(topic, part, off) IN (0, 3))
);

-- For the purge, which walks by age. Rows arrive in that order, so BRIN is enough.
CREATE INDEX inbox_created_at ON inbox USING brin (created_at);

-- The highest token of each lock. Locked from claim to COMMIT. Not indexed further, and
-- with room on each page, so that updates stay on it (HOT).
CREATE TABLE inbox_fence (
  resource uuid PRIMARY KEY,                  -- hash of the name of the lock
  token    bigint NOT NULL CHECK (token > 0),
  parked   boolean NOT NULL DEFAULT false     -- messages of this lock wait behind a dead letter
) WITH (fillfactor = 70);
