package payments

import (
	"cmp"
	"errors"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/paymentsd/paymentsd/internal/gather"
)

// A transaction costs PostgreSQL about the same whether it opens one payment or fifty, so payments share transactions while
// there is traffic: those that arrive while one is on its way to the disk are the next set (package gather). A payment gives
// up nothing for the company. It is opened or moved by the same statement as when it is alone, its rows commit together or
// not at all, and its verdict is its own.

const (
	// setMax bounds a set. From some fifty on, a payment more costs what its rows cost; past a hundred or so only the
	// transaction gets longer, and with it the time that the first of the set waits.
	setMax = 128
	// setsUnderWayMax of each kind: PostgreSQL works on one set while the other waits for the disk. A third would only make
	// the sets smaller.
	setsUnderWayMax = 2
)

// openingRules keeps apart what one statement cannot judge together, because it would see neither the one nor the other: two
// keys for one business key, and two refunds of one payment.
func (s *Service) openingRules() gather.Rules[opening] {
	return gather.Rules[opening]{
		UnderWayMax: setsUnderWayMax, SizeMax: cmp.Or(s.cfg.SetMax, setMax), Divide: isOnesFault, Observe: observeSet("open"),
		Lane: func(o opening) string { return o.command.Scope.TenantID },
		Apart: func(o opening) (thing, holder string) {
			scope := o.command.Scope
			thing = scope.TenantID + "\x00" + o.resolved.accountID + "\x00" + o.resolved.reference
			if o.resolved.kind == KindRefund {
				thing = scope.TenantID + "\x00" + o.command.Said.PaymentID
			}
			return thing, scope.Operation + "\x00" + string(scope.Key)
		},
	}
}

// moveRules keeps two owners of one payment apart, the one that was overtaken and the one that overtook it.
func (s *Service) moveRules() gather.Rules[write] {
	return gather.Rules[write]{
		UnderWayMax: setsUnderWayMax, SizeMax: cmp.Or(s.cfg.SetMax, setMax), Divide: isOnesFault, Observe: observeSet("move"),
		Lane: func(w write) string { return w.lease.TenantID },
		Apart: func(w write) (thing, holder string) {
			return w.lease.TenantID + "\x00" + w.after.ID, strconv.FormatInt(w.lease.Epoch, 10)
		},
	}
}

// isOnesFault reports whether a transaction may have failed because of one member of its set: a row that a constraint or a
// type refuses, or one that somebody has locked. A database that is away is nobody's fault.
func isOnesFault(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return false
	}
	switch pg.Code[:2] {
	case "21", "22", "23", "40", "44", "54", "55", "P0":
		return true
	default:
		return false
	}
}
