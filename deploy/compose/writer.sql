-- A small shop: an order and its event in one transaction, twice a second.
CREATE TABLE IF NOT EXISTS orders (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  customer text NOT NULL,
  total_cents bigint NOT NULL
);

WITH new_order AS (
  INSERT INTO orders (customer, total_cents)
  VALUES ('customer-' || (random() * 100)::int, (random() * 10000)::bigint)
  RETURNING *
)
INSERT INTO outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload)
SELECT gen_random_uuid(), 'order', id::text, 1, 'OrderPlaced', to_jsonb(new_order)
FROM new_order
\watch 0.5
