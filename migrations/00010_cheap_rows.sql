-- What a payment costs the database: fewer rows and index entries, and completions that touch no index.
-- docs/decisions/0017-cheap-rows.md says what was measured.

-- +goose Up

-- Keys that are in progress, as many as there are requests under way, so that recovery finds the abandoned ones without an
-- index that every completion would have to change. Written by whatever makes a key IN_PROGRESS, deleted by whatever ends that.
-- An older build beside this one writes no rows here: it sets next_attempt_at, and recovery finds its keys by that.
CREATE TABLE idempotency_in_progress (
    tenant_id       text NOT NULL,
    operation_name  text NOT NULL,
    idempotency_key text NOT NULL,
    PRIMARY KEY (tenant_id, operation_name, idempotency_key)
);

-- The index holds only keys whose outcome is unknown. Neither its column nor its predicate changes while an ordinary payment is
-- opened and completed, so PostgreSQL updates the key in place (HOT).
ALTER TABLE idempotency_requests DROP CONSTRAINT unresolved_is_looked_at_again;
-- What is there has met the stricter constraint, so nothing has to be read again.
ALTER TABLE idempotency_requests ADD CONSTRAINT unknown_is_looked_at_again CHECK
    (status <> 'UNKNOWN_REQUIRES_RECOVERY' OR next_attempt_at IS NOT NULL) NOT VALID;
ALTER TABLE idempotency_requests ADD CONSTRAINT only_unresolved_is_looked_at_again CHECK
    (status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY') OR next_attempt_at IS NULL) NOT VALID;
DROP INDEX idempotency_requests_due;
CREATE INDEX idempotency_requests_due ON idempotency_requests (next_attempt_at) WHERE next_attempt_at IS NOT NULL;

-- Room on the page for the rows as they will be, or the update of a set of rows that lie together would not find it there.
ALTER TABLE idempotency_requests SET (fillfactor = 35);
ALTER TABLE payments SET (fillfactor = 40);

-- An event is found by what it is about and its sequence; nothing looks for an event id but Redrive, among the few that are held.
ALTER TABLE outbox_events DROP CONSTRAINT outbox_events_pkey, DROP CONSTRAINT one_event_a_transition;
ALTER TABLE outbox_events ADD CONSTRAINT one_event_a_transition PRIMARY KEY (tenant_id, aggregate_id, sequence);

-- One row for one commit: the states between are in it. Their rows, and those of the first move, which the payment itself tells,
-- are in no history that is made from now on.
ALTER TABLE payment_moves ADD COLUMN via_state text;

-- +goose Down
INSERT INTO payment_moves (tenant_id, payment_id, version, from_state, to_state, reason, lease_epoch, moved_at)
SELECT tenant_id, payment_id, version - 1, from_state, via_state, reason, lease_epoch, moved_at FROM payment_moves WHERE via_state IS NOT NULL;
UPDATE payment_moves SET from_state = via_state WHERE via_state IS NOT NULL;
INSERT INTO payment_moves (tenant_id, payment_id, version, from_state, to_state, reason, lease_epoch, moved_at)
SELECT tenant_id, payment_id, 1, 'RECEIVED', 'LOCAL_PAYMENT_CREATED', 'claimed', 1, created_at FROM payments ON CONFLICT DO NOTHING;
ALTER TABLE payment_moves DROP COLUMN via_state;

ALTER TABLE payments RESET (fillfactor);
ALTER TABLE idempotency_requests RESET (fillfactor);

ALTER TABLE outbox_events DROP CONSTRAINT one_event_a_transition;
ALTER TABLE outbox_events ADD CONSTRAINT outbox_events_pkey PRIMARY KEY (tenant_id, event_id),
    ADD CONSTRAINT one_event_a_transition UNIQUE (tenant_id, aggregate_id, sequence);

UPDATE idempotency_requests SET next_attempt_at = locked_until WHERE status = 'IN_PROGRESS' AND next_attempt_at IS NULL;
DROP INDEX idempotency_requests_due;
CREATE INDEX idempotency_requests_due ON idempotency_requests (next_attempt_at)
    WHERE status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY');
ALTER TABLE idempotency_requests DROP CONSTRAINT only_unresolved_is_looked_at_again;
ALTER TABLE idempotency_requests DROP CONSTRAINT unknown_is_looked_at_again;
ALTER TABLE idempotency_requests ADD CONSTRAINT unresolved_is_looked_at_again CHECK
    ((status IN ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY')) = (next_attempt_at IS NOT NULL));
DROP TABLE idempotency_in_progress;
