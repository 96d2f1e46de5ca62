-- name: FindTenantBySecret :one
-- Locks nothing.
SELECT tenant_id FROM api_keys WHERE secret_hash = @secret_hash AND revoked_at IS NULL;

-- name: InsertTenant :exec
INSERT INTO tenants (tenant_id) VALUES (@tenant_id) ON CONFLICT DO NOTHING;

-- name: InsertAPIKey :execrows
INSERT INTO api_keys (tenant_id, api_key_id, secret_hash) VALUES (@tenant_id, @api_key_id, @secret_hash) ON CONFLICT DO NOTHING;

-- name: RevokeAPIKey :execrows
UPDATE api_keys SET revoked_at = now() WHERE tenant_id = @tenant_id AND api_key_id = @api_key_id AND revoked_at IS NULL;

-- name: ListAPIKeys :many
SELECT api_key_id, created_at, revoked_at FROM api_keys WHERE tenant_id = @tenant_id ORDER BY created_at, api_key_id;

-- name: InsertAccount :exec
INSERT INTO accounts (tenant_id, account_id) VALUES (@tenant_id, @account_id) ON CONFLICT DO NOTHING;

-- name: TenantExists :one
SELECT EXISTS (SELECT FROM tenants WHERE tenant_id = @tenant_id);
