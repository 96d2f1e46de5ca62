// Package tenants promises that a caller is who its API key says, and that the key itself is written down nowhere.
//
// A tenant owns idempotency keys and payments; an API key only speaks for its tenant, so a client may change its API key in
// the middle of a retry.
package tenants

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/singleflight"

	"github.com/paymentsd/paymentsd/internal/tenants/internal/tenantssql"
)

var (
	// ErrUnknownAPIKey: no API key, one that was never issued, or one that was revoked. Which of these is not told.
	ErrUnknownAPIKey = errors.New("API key is missing or not valid")
	// ErrNotFound: there is no such tenant or API key.
	ErrNotFound = errors.New("no such tenant or API key")
	// ErrExists: the tenant has an API key of that name already.
	ErrExists = errors.New("an API key of that name exists already")
)

const (
	// rememberedFor is how long a revoked API key may go on working: long enough that a busy client costs one look-up a
	// second, short enough to call a revocation immediate.
	rememberedFor = time.Second
	// lookUpFor is how long one look-up may take: it takes a millisecond, or the database hangs.
	lookUpFor = 5 * time.Second
	// rememberedMax bounds the memory that callers can make us use; more than this many API keys in a second are looked up.
	rememberedMax = 10_000
)

// Directory knows tenants and their API keys.
type Directory struct {
	db  tenantssql.DBTX
	sql *tenantssql.Queries

	mu         sync.Mutex
	remembered map[[sha256.Size]byte]authenticated
	looking    singleflight.Group
}

// Scope is what an API key may be used for.
type Scope string

const (
	Read   Scope = "read"
	Pay    Scope = "pay"
	Refund Scope = "refund"
)

// AllScopes is what an API key may do unless it was issued for less.
var AllScopes = []Scope{Read, Pay, Refund}

// Caller is whom an API key speaks for, and how far.
type Caller struct {
	TenantID   string
	APIVersion string // answers requests that name none
	Scopes     []Scope
}

// May reports whether the caller's API key was issued for this.
func (c Caller) May(s Scope) bool { return slices.Contains(c.Scopes, s) }

type authenticated struct {
	caller Caller
	until  time.Time
}

// NewDirectory makes a directory on a pool of connections.
func NewDirectory(db tenantssql.DBTX) *Directory {
	return &Directory{db: db, sql: tenantssql.New(), remembered: map[[sha256.Size]byte]authenticated{}}
}

// Authenticate finds the caller that an API key speaks for. It returns ErrUnknownAPIKey when there is none.
func (d *Directory) Authenticate(ctx context.Context, secret string) (Caller, error) {
	if secret == "" {
		return Caller{}, ErrUnknownAPIKey
	}
	hash := sha256.Sum256([]byte(secret))
	if caller, ok := d.recall(hash); ok {
		return caller, nil
	}
	// One looks for all who ask at the same time: when a memory of a busy key ends, hundreds do. None of them may take the
	// others down by hanging up.
	found, err, _ := d.looking.Do(string(hash[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookUpFor)
		defer cancel()
		return d.find(ctx, hash)
	})
	caller, _ := found.(Caller)
	return caller, err
}

func (d *Directory) find(ctx context.Context, hash [sha256.Size]byte) (Caller, error) {
	row, err := d.sql.FindTenantBySecret(ctx, d.db, hash[:])
	if errors.Is(err, pgx.ErrNoRows) {
		return Caller{}, ErrUnknownAPIKey
	}
	if err != nil {
		return Caller{}, fmt.Errorf("authenticate: %w", err)
	}
	caller := Caller{row.TenantID, row.ApiVersion, scopesOf(row.Scopes)}
	d.remember(hash, caller)
	return caller, nil
}

func scopesOf(names []string) []Scope {
	scopes := make([]Scope, len(names))
	for i, n := range names {
		scopes[i] = Scope(n)
	}
	return scopes
}

func (d *Directory) recall(hash [sha256.Size]byte) (Caller, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a, ok := d.remembered[hash]
	return a.caller, ok && time.Now().Before(a.until)
}

func (d *Directory) remember(hash [sha256.Size]byte, caller Caller) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.remembered) >= rememberedMax {
		clear(d.remembered)
	}
	d.remembered[hash] = authenticated{caller, time.Now().Add(rememberedFor)}
}

// PinAPIVersion says which version of the API answers the tenant's requests that name none. Stored answers stay as they
// are. It returns ErrNotFound.
func (d *Directory) PinAPIVersion(ctx context.Context, tenantID, version string) error {
	rows, err := d.sql.PinAPIVersion(ctx, d.db, tenantssql.PinAPIVersionParams{TenantID: tenantID, ApiVersion: version})
	if err != nil {
		return fmt.Errorf("pin API version: %w", err)
	}
	if rows == 0 {
		return ErrNotFound
	}
	return nil
}

// Create makes a tenant, or does nothing when it exists.
func (d *Directory) Create(ctx context.Context, tenantID string) error {
	if err := d.sql.InsertTenant(ctx, d.db, tenantID); err != nil {
		return fmt.Errorf("create tenant: %w", err)
	}
	return nil
}

// OpenAccount makes an account of a tenant, or does nothing when it exists.
func (d *Directory) OpenAccount(ctx context.Context, tenantID, accountID string) error {
	if err := d.sql.InsertAccount(ctx, d.db, tenantssql.InsertAccountParams{TenantID: tenantID, AccountID: accountID}); err != nil {
		return fmt.Errorf("open account: %w", err)
	}
	return nil
}

// IssueAPIKey makes an API key for the given scopes, all when none is given, with a random secret, and returns the secret,
// which cannot be had again. It returns ErrNotFound when there is no such tenant and ErrExists when the name is taken.
func (d *Directory) IssueAPIKey(ctx context.Context, tenantID, name string, scopes ...Scope) (secret string, err error) {
	exists, err := d.sql.TenantExists(ctx, d.db, tenantID)
	if err != nil {
		return "", fmt.Errorf("issue API key: %w", err)
	}
	if !exists {
		return "", ErrNotFound
	}
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails, by its documentation
	secret = "sk_" + base64.RawURLEncoding.EncodeToString(random)
	issued, err := d.insertAPIKey(ctx, tenantID, name, secret, scopes)
	if err == nil && !issued {
		err = ErrExists
	}
	return secret, err
}

func (d *Directory) insertAPIKey(ctx context.Context, tenantID, name, secret string, scopes []Scope) (bool, error) {
	if len(scopes) == 0 {
		scopes = AllScopes
	}
	names := make([]string, len(scopes))
	for i, s := range scopes {
		names[i] = string(s)
	}
	hash := sha256.Sum256([]byte(secret))
	rows, err := d.sql.InsertAPIKey(ctx, d.db, tenantssql.InsertAPIKeyParams{TenantID: tenantID, ApiKeyID: name, SecretHash: hash[:], Scopes: names})
	if err != nil {
		return false, fmt.Errorf("issue API key: %w", err)
	}
	return rows == 1, nil
}

// RevokeAPIKey ends an API key; within rememberedFor every instance refuses it. It returns ErrNotFound when the tenant has
// no such key in force.
func (d *Directory) RevokeAPIKey(ctx context.Context, tenantID, name string) error {
	rows, err := d.sql.RevokeAPIKey(ctx, d.db, tenantssql.RevokeAPIKeyParams{TenantID: tenantID, ApiKeyID: name})
	if err != nil {
		return fmt.Errorf("revoke API key: %w", err)
	}
	if rows == 0 {
		return ErrNotFound
	}
	return nil
}

// APIKey is what can be told about an API key. The secret cannot.
type APIKey struct {
	Name      string
	Scopes    []Scope
	CreatedAt time.Time
	RevokedAt *time.Time
}

// APIKeys lists a tenant's API keys, oldest first.
func (d *Directory) APIKeys(ctx context.Context, tenantID string) ([]APIKey, error) {
	rows, err := d.sql.ListAPIKeys(ctx, d.db, tenantID)
	if err != nil {
		return nil, fmt.Errorf("list API keys: %w", err)
	}
	keys := make([]APIKey, len(rows))
	for i, r := range rows {
		keys[i] = APIKey{r.ApiKeyID, scopesOf(r.Scopes), r.CreatedAt, r.RevokedAt}
	}
	return keys, nil
}

// Demo makes the two demo tenants, acme and globex, each with accounts acc_1 and acc_2 and an API key that everybody can
// read in the documentation. It changes nothing that exists.
func (d *Directory) Demo(ctx context.Context) error {
	for _, tenantID := range []string{"acme", "globex"} {
		if err := d.Create(ctx, tenantID); err != nil {
			return err
		}
		for _, accountID := range []string{"acc_1", "acc_2"} {
			if err := d.OpenAccount(ctx, tenantID, accountID); err != nil {
				return err
			}
		}
		if _, err := d.insertAPIKey(ctx, tenantID, "demo", "sk_demo_"+tenantID, nil); err != nil {
			return err
		}
	}
	return nil
}
