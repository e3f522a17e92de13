-- Statements of version 2 of the schema, as its code sent them. They are not to be changed:
-- processes with that code run on, while the next ones come up on the next schema.

-- name: scope
SELECT id FROM {inbox_scope} WHERE tenant = $1 AND consumer = $2

-- name: newScope
INSERT INTO {inbox_scope} (tenant, consumer) VALUES ($1, $2) ON CONFLICT (tenant, consumer) DO NOTHING

-- name: claim
WITH s AS MATERIALIZED (
  SELECT set_config('lock_timeout', $1::text, true) AS lock_timeout,
    set_config('idle_in_transaction_session_timeout', $2::text, true) AS max_hold,
    set_config('synchronous_commit', CASE WHEN $3::boolean AND current_setting('synchronous_commit') <> 'remote_apply'
      THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS synchronous_commit
), m AS MATERIALIZED (
  SELECT t.* FROM s CROSS JOIN
    unnest($5::uuid[], $6::text[], $7::uuid[], $8::uuid[], $9::uuid[], $10::int[], $11::bigint[])
    WITH ORDINALITY AS t(key, id, fingerprint, resource, topic, part, off, ord)
), f AS (
  INSERT INTO {inbox_fence} AS g (resource, token)
  SELECT t.resource, t.token FROM s CROSS JOIN unnest($12::uuid[], $13::bigint[]) AS t(resource, token)
  ORDER BY t.resource
  ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token WHERE g.token <= EXCLUDED.token
  RETURNING g.resource
), i AS (
  INSERT INTO {inbox} (key, scope, id, fingerprint, topic, part, off)
  SELECT key, $4::int, id, fingerprint, topic, part, off FROM m
  WHERE cardinality(ARRAY(SELECT resource FROM f)) >= $14::int
    AND (resource IS NULL OR resource = ANY (ARRAY(SELECT resource FROM f)))
  ORDER BY key
  ON CONFLICT (key) DO NOTHING
  RETURNING key
)
SELECT m.ord FROM m LEFT JOIN i USING (key) WHERE i.key IS NULL

-- name: look
SELECT key::text, fingerprint::text, NULL::bigint FROM {inbox} WHERE key = ANY ($1::uuid[])
UNION ALL
SELECT resource::text, NULL, token FROM {inbox_fence} WHERE resource = ANY ($2::uuid[])

-- name: busy
WITH free AS MATERIALIZED (
  SELECT resource FROM {inbox_fence} WHERE resource = ANY ($1::uuid[]) FOR UPDATE SKIP LOCKED
)
SELECT resource::text FROM {inbox_fence}
WHERE resource = ANY ($1::uuid[]) AND resource NOT IN (SELECT resource FROM free)

-- name: unclaim
DELETE FROM {inbox} WHERE key = ANY ($1::uuid[])

-- name: startTask
INSERT INTO {inbox_task} AS t (key, scope, id, fingerprint, topic, part, off, owner, token, lease_until, starts, state)
VALUES ($1::uuid, $2::int, $3::text, $4::uuid, $5::uuid, $6::int, $7::bigint, $8::uuid, $9::bigint,
  clock_timestamp() + $10::bigint * interval '1 millisecond', 1, 'running')
ON CONFLICT (key) DO UPDATE SET owner = EXCLUDED.owner, token = EXCLUDED.token, lease_until = EXCLUDED.lease_until,
  starts = t.starts + 1, state = 'running'
RETURNING starts

-- name: findTask
SELECT state, lease_until > clock_timestamp() AS running, starts,
  ceil(extract(epoch FROM lease_until - clock_timestamp()) * 1000)::bigint AS milliseconds
FROM {inbox_task} WHERE key = $1::uuid

-- name: finishTask
WITH d AS (
  DELETE FROM {inbox_task} WHERE key = $1::uuid AND owner = $2::uuid AND token = $3::bigint
  RETURNING key, scope, id, fingerprint, topic, part, off
)
INSERT INTO {inbox} (key, scope, id, fingerprint, topic, part, off)
SELECT key, scope, id, fingerprint, topic, part, off FROM d ON CONFLICT (key) DO NOTHING
