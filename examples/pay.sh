#!/usr/bin/env bash
# A client that retries well, with curl: one key for one attempt, sent again until the answer is definite.
# usage: pay.sh KEY REFERENCE AMOUNT
set -euo pipefail
url=${PAYMENTSD_URL:-http://127.0.0.1:8080} key=$1 reference=$2 amount=$3
answer=$(mktemp) headers=$(mktemp)
trap 'rm -f "$answer" "$headers"' EXIT
for _ in $(seq 60); do
  # 000 is what curl says when there was no answer: the request may have arrived all the same.
  status=$(curl -s -o "$answer" -D "$headers" -w '%{http_code}' "$url/payments" \
    -H "Authorization: Bearer ${PAYMENTSD_API_KEY:-sk_demo_acme}" -H "Idempotency-Key: $key" -H 'Prefer: wait=10' \
    -H 'Content-Type: application/json' \
    -d "{\"accountId\":\"acc_1\",\"amount\":\"$amount\",\"currency\":\"EUR\",\"merchantReference\":\"$reference\"}" || true)
  if [ "$status" != 000 ] && [ "$status" != 202 ] && ! grep -q '"retryable":true' "$answer"; then
    echo "$status $(cat "$answer")"
    exit 0
  fi
  wait=$(awk 'tolower($1) == "retry-after:" { print $2 + 0 }' "$headers")
  sleep "${wait:-1}"
done
echo "not known yet: run again with the same key" >&2
exit 1
