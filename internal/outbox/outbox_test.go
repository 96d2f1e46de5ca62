package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/outbox"
	"github.com/paymentsd/paymentsd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func event(n int) outbox.Event {
	return outbox.Event{ID: fmt.Sprintf("evt_%d", n), AggregateID: "acc_1", Sequence: n, Type: "AccountChanged", Payload: []byte(`{"b":1,  "a":1.0}`)}
}

// With its transaction, or not at all; and the bytes stay as they are.
func TestAppendCommitsOrDiesWithItsCaller(t *testing.T) {
	pool := pgtest.Pool(t)
	failing := errors.New("the caller changes its mind")
	require.ErrorIs(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		require.NoError(t, outbox.Append(t.Context(), tx, "acme", event(1)))
		return failing
	}), failing)
	backlog, err := outbox.Unpublished(t.Context(), pool)
	require.NoError(t, err)
	require.Zero(t, backlog)

	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return outbox.Append(t.Context(), tx, "acme", event(1)) }))
	backlog, err = outbox.Unpublished(t.Context(), pool)
	require.NoError(t, err)
	require.EqualValues(t, 1, backlog.Events)
	var payload string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT payload::text FROM outbox_events`).Scan(&payload))
	require.Equal(t, `{"b":1,  "a":1.0}`, payload)
	require.Error(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		again := event(1)
		again.ID = "evt_other"
		return outbox.Append(t.Context(), tx, "acme", again)
	}), "one event a transition")
}

func TestOnlyWhatWasPublishedLongAgoIsDeleted(t *testing.T) {
	pool := pgtest.Pool(t)
	for n := 1; n <= 9; n++ {
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return outbox.Append(t.Context(), tx, "acme", event(n)) }))
	}
	_, err := pool.Exec(t.Context(), `UPDATE outbox_events SET created_at = now() - interval '100 h',
		published_at = CASE WHEN sequence <= 5 THEN now() - interval '99 h' WHEN sequence <= 7 THEN now() - interval '1 h' END`)
	require.NoError(t, err)
	deleted, err := outbox.DeletePublished(t.Context(), pool, 72*time.Hour, 2, func(context.Context) {})
	require.NoError(t, err)
	require.EqualValues(t, 5, deleted)
	backlog, err := outbox.Unpublished(t.Context(), pool)
	require.NoError(t, err)
	require.EqualValues(t, 2, backlog.Events, "however old")
}
