-- name: LockAccounts :exec
-- One transaction at a time posts to an account, until it ends: so positions are in the order of commits, and what a page has
-- shown never changes. Locks in sorted order. The provider's account is left out: nobody pages through it, and everything would wait for it.
WITH keys AS MATERIALIZED (
    SELECT DISTINCT hashtextextended(tenant_id || '/' || account_id, 0) AS key
    FROM (SELECT unnest(@tenant_ids::text[]) AS tenant_id, unnest(@account_ids::text[]) AS account_id) asked
    ORDER BY key
)
SELECT pg_advisory_xact_lock(key) FROM keys;

-- name: PostEntries :execrows
-- Whole pairs or nothing: a trigger refuses anything else. What is posted already stays as it is. Locks the rows it inserts, in
-- key order, and waits for whoever posts one of them at this moment.
INSERT INTO ledger_entries (tenant_id, ledger_entry_type, source_payment_id, account_id, amount_minor, currency, occurred_at)
SELECT tenant_id, ledger_entry_type, source_payment_id, account_id, amount_minor, currency, occurred_at
FROM (SELECT unnest(@tenant_ids::text[])         AS tenant_id,
             unnest(@entry_types::text[])        AS ledger_entry_type,
             unnest(@payment_ids::text[])        AS source_payment_id,
             unnest(@account_ids::text[])        AS account_id,
             unnest(@amounts_minor::bigint[])    AS amount_minor,
             unnest(@currencies::text[])         AS currency,
             unnest(@occurred_at::timestamptz[]) AS occurred_at) asked
ORDER BY tenant_id, ledger_entry_type, source_payment_id
ON CONFLICT DO NOTHING;

-- name: FindContradictions :many
-- Locks nothing. Entries that are posted and say something else than what is asked for.
SELECT DISTINCT asked.source_payment_id::text AS payment_id
FROM (SELECT unnest(@tenant_ids::text[])      AS tenant_id,
             unnest(@entry_types::text[])     AS ledger_entry_type,
             unnest(@payment_ids::text[])     AS source_payment_id,
             unnest(@account_ids::text[])     AS account_id,
             unnest(@amounts_minor::bigint[]) AS amount_minor,
             unnest(@currencies::text[])      AS currency) asked
JOIN ledger_entries e ON e.tenant_id = asked.tenant_id AND e.ledger_entry_type = asked.ledger_entry_type AND e.source_payment_id = asked.source_payment_id
WHERE (e.account_id, e.amount_minor, e.currency) IS DISTINCT FROM (asked.account_id, asked.amount_minor, asked.currency);

-- name: ListEntries :many
-- Locks nothing. One page, oldest first, each with the balance of its currency after it. What came before the page is summed from
-- the index alone.
WITH page AS (
    SELECT e.position, e.ledger_entry_type, e.source_payment_id, e.amount_minor, e.currency, e.occurred_at, e.posted_at
    FROM ledger_entries e
    WHERE e.tenant_id = @tenant_id AND e.account_id = @account_id AND e.position > @after_position
    ORDER BY e.position LIMIT @rows_max
), before AS (
    SELECT e.currency, sum(e.amount_minor) AS balance FROM ledger_entries e
    WHERE e.tenant_id = @tenant_id AND e.account_id = @account_id AND e.position <= @after_position
    GROUP BY e.currency
)
SELECT page.position, page.ledger_entry_type, page.source_payment_id, page.amount_minor, page.currency, page.occurred_at, page.posted_at,
       (coalesce(before.balance, 0) + sum(page.amount_minor) OVER (PARTITION BY page.currency ORDER BY page.position))::bigint AS balance_minor
FROM page LEFT JOIN before ON before.currency = page.currency
ORDER BY page.position;
