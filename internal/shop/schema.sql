-- What the shop keeps beside its outbox. Money is in cents.

CREATE TABLE IF NOT EXISTS shows (
    id         integer PRIMARY KEY,
    title      text    NOT NULL,
    price      integer NOT NULL CHECK (price > 0),
    seats_left integer NOT NULL CHECK (seats_left >= 0)
);

CREATE TABLE IF NOT EXISTS customers (
    id      integer PRIMARY KEY,
    balance integer NOT NULL CHECK (balance >= 0)
);

CREATE TABLE IF NOT EXISTS orders (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    public_id   uuid        NOT NULL DEFAULT gen_random_uuid() UNIQUE,
    show_id     integer     NOT NULL REFERENCES shows,
    customer_id integer     NOT NULL REFERENCES customers,
    seats       integer     NOT NULL CHECK (seats > 0),
    created_at  timestamptz NOT NULL DEFAULT now(),
    refunded_at timestamptz
);

-- renders counts how often a worker rendered the ticket. It is 1 in the end,
-- unless a worker did a job twice.
CREATE TABLE IF NOT EXISTS tickets (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id bigint  NOT NULL REFERENCES orders,
    renders  integer NOT NULL DEFAULT 0,
    void     boolean NOT NULL DEFAULT false
);
CREATE INDEX IF NOT EXISTS tickets_order_id ON tickets (order_id);

-- A payout is money sent back for an order. No unique key saves the worker here:
-- a job done twice would pay twice, and the account would show it.
CREATE TABLE IF NOT EXISTS payouts (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id bigint NOT NULL REFERENCES orders
);

-- The worker's memory: the ids of the outbox rows whose work is committed.
CREATE TABLE IF NOT EXISTS jobs_done (
    outbox_id bigint PRIMARY KEY,
    worker    text        NOT NULL,
    done_at   timestamptz NOT NULL DEFAULT now()
);
