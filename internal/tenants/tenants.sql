-- name: FindTenantBySecret :one
-- Locks nothing.
SELECT t.tenant_id, t.api_version, a.scopes FROM api_keys a JOIN tenants t ON t.tenant_id = a.tenant_id
WHERE a.secret_hash = @secret_hash AND a.revoked_at IS NULL;

-- name: InsertTenant :exec
INSERT INTO tenants (tenant_id) VALUES (@tenant_id) ON CONFLICT DO NOTHING;

-- name: InsertAPIKey :execrows
INSERT INTO api_keys (tenant_id, api_key_id, secret_hash, scopes) VALUES (@tenant_id, @api_key_id, @secret_hash, @scopes) ON CONFLICT DO NOTHING;

-- name: PinAPIVersion :execrows
UPDATE tenants SET api_version = @api_version WHERE tenant_id = @tenant_id;

-- name: RevokeAPIKey :execrows
UPDATE api_keys SET revoked_at = now() WHERE tenant_id = @tenant_id AND api_key_id = @api_key_id AND revoked_at IS NULL;

-- name: ListAPIKeys :many
SELECT api_key_id, scopes, created_at, revoked_at FROM api_keys WHERE tenant_id = @tenant_id ORDER BY created_at, api_key_id;

-- name: InsertAccount :exec
INSERT INTO accounts (tenant_id, account_id) VALUES (@tenant_id, @account_id) ON CONFLICT DO NOTHING;

-- name: TenantExists :one
SELECT EXISTS (SELECT FROM tenants WHERE tenant_id = @tenant_id);
