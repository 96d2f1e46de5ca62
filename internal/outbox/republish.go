package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/paymentsd/paymentsd/internal/outbox/internal/outboxsql"
)

// republishBatchMax keeps each transaction short beside the traffic.
const republishBatchMax = 1000

// Republish has everything sent again that was published within the last while and is still in the outbox, and says how many
// events that is. It is for a broker that has lost what it acknowledged: its disk, or its stream. Consumers that have an event take
// none of it twice.
func Republish(ctx context.Context, db outboxsql.DBTX, ago time.Duration) (total int64, err error) {
	queries := outboxsql.New()
	span, err := queries.Span(ctx, db, ago)
	if err != nil {
		return 0, fmt.Errorf("republish events: %w", err)
	}
	for {
		events, err := queries.RepublishEvents(ctx, db, outboxsql.RepublishEventsParams{Since: span.Since, Until: span.Until, RowsMax: republishBatchMax})
		if err != nil {
			return total, fmt.Errorf("republish events: %w", err)
		}
		total += events
		if events < republishBatchMax {
			return total, nil
		}
	}
}
