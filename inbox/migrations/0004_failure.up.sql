-- Messages that have failed, or were begun by a process that did not live to say how it
-- ended. A row goes in the transaction that decides its message; the purge takes what
-- stays, for a message that never came again.
CREATE TABLE inbox_attempt (
  key      uuid PRIMARY KEY,                   -- as in inbox
  at       timestamptz NOT NULL DEFAULT now(), -- of the last change
  scope    int NOT NULL,
  attempts int NOT NULL CHECK (attempts >= 0), -- failures that were charged
  started  int NOT NULL CHECK (started >= 0),  -- starts of a suspect whose end was not seen
  id       text NOT NULL,
  last     text NOT NULL                       -- the last error, cut and escaped, for people
);

-- Messages that wait behind a dead letter of their lock, in order, the dead one first. Of
-- each there is a row of inbox, so it need not be delivered again. A lock with rows here
-- has inbox_fence.parked set, which is what the claim sees.
CREATE TABLE inbox_parked (
  resource uuid NOT NULL,                       -- as in inbox_fence
  seq      bigint GENERATED ALWAYS AS IDENTITY, -- grows within a resource, since its fence is locked
  at       timestamptz NOT NULL DEFAULT now(),
  key      uuid NOT NULL,                       -- as in inbox
  scope    int NOT NULL,
  dead     boolean NOT NULL,                    -- the message that the others wait for
  name     bytea NOT NULL,                      -- of the lock
  id       text NOT NULL,                       -- of the message, for people
  message  bytea NOT NULL,                      -- what Message.Body gave
  PRIMARY KEY (scope, resource, seq)
);
