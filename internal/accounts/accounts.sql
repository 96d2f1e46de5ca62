-- name: LockAccount :one
-- Locks the account row until the transaction ends.
SELECT status, coalesce(default_currency, '')::text AS default_currency, version, created_at, updated_at FROM accounts
WHERE tenant_id = @tenant_id AND account_id = @account_id FOR UPDATE;

-- name: GetAccount :one
-- Locks nothing.
SELECT status, coalesce(default_currency, '')::text AS default_currency, version, created_at, updated_at FROM accounts
WHERE tenant_id = @tenant_id AND account_id = @account_id;

-- name: InsertAccount :execrows
-- Waits for a concurrent insert of the same account.
INSERT INTO accounts (tenant_id, account_id, status) VALUES (@tenant_id, @account_id, @status) ON CONFLICT DO NOTHING;

-- name: UpdateAccount :exec
-- Its row is locked already.
UPDATE accounts SET status = @status, default_currency = nullif(@default_currency::text, ''), version = version + 1, updated_at = now()
WHERE tenant_id = @tenant_id AND account_id = @account_id;
