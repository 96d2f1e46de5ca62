package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/paymentsd/paymentsd/bench/floor"
)

// Counts over fixed work are the hard part of the result: they do not depend on what else the machine does. They are taken on
// an instance of the service of its own, through the wire, on a database where nothing else writes.

// cost is what one operation took, on average over fixed work.
type cost struct {
	Name       string  `json:"name"`
	Operations int     `json:"operations"`
	RoundTrips float64 `json:"roundTrips"` // between the service and PostgreSQL, except:
	Apart      float64 `json:"apart"`      // lookups of callers' API keys, each once a second, and rings for the relay, some 50 a second
	Commits    float64 `json:"commits"`    // of transactions that wrote something; without the rings
	WALRecords float64 `json:"walRecords"`
	WALBytes   float64 `json:"walBytes"` // without full-page images
	Micros     micros  `json:"processorMicroseconds"`
	Objects    float64 `json:"allocatedObjects"` // by the service
	Bytes      float64 `json:"allocatedBytes"`

	wal   walStats
	trips map[string]float64 // by the name of the statement
}

const (
	// lookup is the statement that finds a caller by its API key.
	lookup = "FindTenantBySecret"
	// ring is the statement that wakes the relay, beside the requests.
	ring = "RingBell"
)

// micros is processor time of one operation, in microseconds.
type micros struct {
	Service   float64 `json:"service"`
	Postgres  float64 `json:"postgres"`
	Provider  float64 `json:"provider"`
	Generator float64 `json:"generator"` // of the load itself
}

func (u usage) per(operations int) micros {
	n := float64(max(operations, 1)) * 1000
	return micros{float64(u.Service) / n, float64(u.Postgres) / n, float64(u.Provider) / n, float64(u.Generator) / n}
}

// The fixed work.
const (
	countedAlone  = 500
	countedLoad   = 2000
	countedMemory = 4000 // about a second and a half: the heap has reached its size

	aloneClients  = 1
	loadClients   = 64
	memoryClients = 256

	// Enough to open every connection and prepare every statement on it.
	warmUp = 1000
)

// Names of the counted work, by which limits and the bar find it.
const (
	countAlone     = "settled payment, alone"
	countReplay    = "replay, alone"
	countConflict  = "key with another body, alone"
	countRefund    = "settled refund, alone"
	countLoad      = "settled payment, 64 clients"
	countMemory    = "settled payment, 256 clients"
	countFloor     = "floor: one statement a transaction"
	countFloorSets = "floor: sets of 50"
)

// counts is what was counted.
type counts struct {
	Costs []cost `json:"costs"`
	// HOT is the share of updates, by table, that touched no index.
	HOT map[string]float64 `json:"hotShare"`
	// PeakMiB is the resident memory of the service, at the most, when 256 requests ran at once.
	PeakMiB float64 `json:"peakMiB"`
	IdleMiB float64 `json:"idleMiB"` // just started
}

func (c counts) of(name string) cost {
	for _, k := range c.Costs {
		if k.Name == name {
			return k
		}
	}
	return cost{}
}

// count does the fixed work.
func (b *bench) count(ctx context.Context) (c counts, err error) {
	db, err := b.w.database(ctx, "counts")
	if err != nil {
		return c, err
	}
	// Autovacuum would write records of its own into the log, now and then.
	if err := b.alterSystem(ctx, db, "SET autovacuum = off"); err != nil {
		return c, err
	}
	wire, err := openWire(db.url)
	if err != nil {
		return c, err
	}
	defer wire.close()
	api, err := b.w.startAPI(ctx, wire.url)
	if err != nil {
		return c, err
	}
	if c, err = b.countService(ctx, &counter{b, db, api, wire}); err != nil {
		return c, err
	}
	b.w.end(api) // its connections tell their statistics when they end
	if c.HOT, err = hotShares(ctx, db); err != nil {
		return c, err
	}
	if b.floor != nil {
		floorCosts, err := b.countFloor(ctx, db)
		if err != nil {
			return c, err
		}
		c.Costs = append(c.Costs, floorCosts...)
	}
	return c, b.alterSystem(ctx, db, "RESET autovacuum")
}

func (b *bench) alterSystem(ctx context.Context, db *database, change string) error {
	for _, sql := range []string{"ALTER SYSTEM " + change, "SELECT pg_reload_conf()"} {
		if _, err := db.pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("set up PostgreSQL: %w", err)
		}
	}
	return nil
}

// counter reads every meter before and after a piece of work.
type counter struct {
	b    *bench
	db   *database
	api  *process
	wire *wire
}

func (b *bench) countService(ctx context.Context, k *counter) (c counts, err error) {
	idle, err := k.api.memory()
	if err != nil {
		return c, err
	}
	addr := k.api.addr
	b.say("counting: warm-up")
	made, t, err := makePayments(ctx, b.client, addr, loadClients, warmUp)
	b.told(k.db, t)
	if err != nil {
		return c, err
	}
	for _, work := range []struct {
		name    string
		clients int
		count   int
		load    load
	}{
		{countAlone, aloneClients, countedAlone, newPayments(addr, 1)},
		{countReplay, aloneClients, countedAlone, again(addr, made.orders)},
		{countConflict, aloneClients, countedAlone, others(addr, made.orders)},
		{countRefund, aloneClients, countedAlone, refundsOf(addr, made.paid)},
		{countLoad, loadClients, countedLoad, newPayments(addr, 1)},
		{countMemory, memoryClients, countedMemory, newPayments(addr, 1)},
	} {
		b.say("counting: %d × %s", work.count, work.name)
		one, err := k.measure(ctx, work.name, work.count, func() error {
			t := closedLoop(ctx, b.client, work.clients, until{work.count, fixedWorkWithin}, work.load)
			b.told(k.db, t)
			if t.err() == nil && t.answered() < work.count {
				return errors.Join(fmt.Errorf("only %d of %d were done in %v", t.answered(), work.count, t.Took), ctx.Err())
			}
			return t.err()
		})
		if err != nil {
			return c, fmt.Errorf("count %s: %w", work.name, err)
		}
		c.Costs = append(c.Costs, one)
	}
	peak, err := k.api.memory()
	c.PeakMiB, c.IdleMiB = float64(peak.Peak)/(1<<20), float64(idle.Now)/(1<<20)
	return c, err
}

// measure does n operations and reads the meters around them. The service's own metrics are read outermost: they cost round
// trips too.
func (k *counter) measure(ctx context.Context, name string, n int, work func() error) (cost, error) {
	var heapBefore, heapAfter heap
	var err error
	if k.api != nil {
		if heapBefore, err = k.api.heap(ctx); err != nil {
			return cost{}, err
		}
	}
	from, err := walPlace(ctx, k.db.pool)
	if err != nil {
		return cost{}, err
	}
	before, err := k.used()
	if err != nil {
		return cost{}, err
	}
	tripsBefore := k.trips()
	if err := work(); err != nil {
		return cost{}, err
	}
	trips := k.trips()
	after, err := k.used()
	if err != nil {
		return cost{}, err
	}
	to, err := walPlace(ctx, k.db.pool)
	if err != nil {
		return cost{}, err
	}
	if k.api != nil {
		if heapAfter, err = k.api.heap(ctx); err != nil {
			return cost{}, err
		}
	}
	wal, err := k.b.w.walBetween(ctx, from, to)
	if err != nil {
		return cost{}, err
	}
	each := float64(n)
	c := cost{
		Name: name, Operations: n, trips: map[string]float64{}, Commits: float64(wal.commits()) / each,
		WALRecords: float64(wal.records()) / each, WALBytes: float64(wal.bytes()) / each, Micros: after.minus(before).per(n),
		Objects: (heapAfter.Objects - heapBefore.Objects) / each, Bytes: (heapAfter.Bytes - heapBefore.Bytes) / each, wal: wal,
	}
	for statement, seen := range trips {
		if more := seen - tripsBefore[statement]; more > 0 {
			c.trips[statement] = float64(more) / each
			c.RoundTrips += float64(more) / each
		}
	}
	c.Apart = c.trips[lookup] + c.trips[ring]
	c.RoundTrips -= c.Apart
	c.Commits -= c.trips[ring]
	return c, nil
}

func (k *counter) used() (usage, error) {
	if k.api == nil {
		return k.b.w.used()
	}
	return k.b.w.used(k.api)
}

func (k *counter) trips() map[string]int {
	if k.wire == nil {
		return nil
	}
	return k.wire.seen()
}

// countFloor counts the same of the floor, to compare with.
func (b *bench) countFloor(ctx context.Context, db *database) (costs []cost, err error) {
	k := &counter{b: b, db: db}
	for _, work := range []struct {
		name   string
		script floor.Script
		times  int
	}{
		{countFloor, floor.D1Alone, countedAlone},
		{countFloorSets, floor.D2, 20},
	} {
		b.say("counting: %s", work.name)
		n := work.times * work.script.Clients * work.script.Each
		one, err := k.measure(ctx, work.name, n, func() error {
			_, err := b.floor.Times(ctx, work.script, work.times)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("count %s: %w", work.name, err)
		}
		one.Micros.Generator = 0 // pgbench is a process that this one does not see into
		costs = append(costs, one)
	}
	return costs, nil
}

// hotShares is the share of updates that touched no index, for the rows that completing a payment updates.
func hotShares(ctx context.Context, db *database) (map[string]float64, error) {
	rows, err := db.pool.Query(ctx, `SELECT relname::text, n_tup_hot_upd::float8 / n_tup_upd FROM pg_stat_user_tables
		WHERE n_tup_upd > 0 AND relname IN ('idempotency_requests', 'payments') ORDER BY relname`)
	if err != nil {
		return nil, fmt.Errorf("read HOT shares: %w", err)
	}
	shares := map[string]float64{}
	for rows.Next() {
		var table string
		var share float64
		if err := rows.Scan(&table, &share); err != nil {
			return nil, err
		}
		shares[table] = share
	}
	return shares, rows.Err()
}
