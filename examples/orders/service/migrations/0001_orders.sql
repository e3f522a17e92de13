-- Months of the books. A COMMIT with a line of the ledger waits while one is being closed.
CREATE TABLE periods (id text PRIMARY KEY);

CREATE TABLE orders (
  id           bigint PRIMARY KEY,
  sku          text NOT NULL,
  qty          int NOT NULL CHECK (qty > 0),
  amount       bigint NOT NULL CHECK (amount > 0), -- deposit on the customer's card, cents
  period       text NOT NULL,
  deadline     timestamptz(0) NOT NULL,            -- unpaid after that: closed; whole seconds, as in event IDs
  state        text NOT NULL DEFAULT 'unpaid' CHECK (state IN ('unpaid', 'paid', 'closed')),
  announced_at timestamptz                         -- when its timeout was told to Kafka; NULL: not yet
);

-- For the scan job.
CREATE INDEX orders_due ON orders (deadline) WHERE announced_at IS NULL;

-- The tables below take a row per effect, and nothing in them refuses a second one for
-- the same order: that is the inbox's job.

-- Stock by movements. A counter per article would make a second lock order: batches that
-- update counters crosswise deadlock.
CREATE TABLE stock_moves (
  order_id bigint NOT NULL REFERENCES orders,
  sku      text NOT NULL,
  qty      int NOT NULL
);
CREATE INDEX stock_moves_order ON stock_moves (order_id);

CREATE TABLE refunds (
  order_id bigint NOT NULL REFERENCES orders,
  amount   bigint NOT NULL,
  payment  text NOT NULL -- the payment service's name for it
);
CREATE INDEX refunds_order ON refunds (order_id);

CREATE TABLE ledger (
  order_id bigint NOT NULL REFERENCES orders,
  amount   bigint NOT NULL,
  period   text NOT NULL REFERENCES periods DEFERRABLE INITIALLY DEFERRED
);
CREATE INDEX ledger_order ON ledger (order_id);

CREATE TABLE notices (
  order_id bigint NOT NULL REFERENCES orders,
  deadline timestamptz(0) NOT NULL
);
CREATE INDEX notices_order ON notices (order_id);
