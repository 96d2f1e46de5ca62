#!/usr/bin/env bash
# Proves make run on a machine that has Go, make and curl and nothing else: no PostgreSQL, and root as the only user to log
# in as. The machine is a container; the checkout lies below /root, where no other user may look.
set -euo pipefail
cd "$(dirname "$0")/.."

image=golang:1.26-bookworm
machine=paymentsd-fresh-$$
work=$(mktemp -d)

finish() {
  local code=$?
  trap - EXIT
  if [ $code != 0 ]; then
    echo "fresh-machine-test: FAILED; what the machine says:" >&2
    docker logs --tail 60 "$machine" >&2 || true
  fi
  docker rm --force --volumes "$machine" >/dev/null 2>&1 || true
  rm -rf "$work"
  exit $code
}
trap finish EXIT
trap "exit 130" INT TERM

say() { echo "fresh-machine-test: $*"; }
fail() { echo "fresh-machine-test: $*" >&2; exit 1; }
inside() { docker exec "$machine" "$@"; }

scripts/base-images.sh "$image"

say "a machine without PostgreSQL"
# Go's caches are this machine's: what is to be proved is not that Go can download and compile.
docker run --detach --init --name "$machine" \
  --volume "$(go env GOCACHE):/root/.cache/go-build" --volume "$(go env GOMODCACHE):/go/pkg/mod" \
  --env GOPROXY="$(go env GOPROXY)" --env GOSUMDB="$(go env GOSUMDB)" --env GOTOOLCHAIN=local --env GOFLAGS=-buildvcs=false \
  "$image" sleep infinity >/dev/null
inside sh -c 'command -v make curl >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq make curl >/dev/null; }'
if inside sh -c 'ls /usr/lib/postgresql 2>/dev/null || command -v postgres'; then
  fail "there is a PostgreSQL in $image already"
fi
inside mkdir -m 700 -p /root/src/paymentsd
git ls-files -z --cached --others --exclude-standard \
  | while IFS= read -r -d '' file; do [ -e "$file" ] && printf '%s\0' "$file"; done \
  | tar --null --files-from=- -c | docker exec -i "$machine" tar -xC /root/src/paymentsd

# run starts make run and waits for readiness; the first time includes compiling and installing PostgreSQL.
run() {
  docker exec --detach "$machine" sh -c 'cd /root/src/paymentsd && exec make run >>/proc/1/fd/1 2>&1'
  local attempt
  for attempt in $(seq 600); do
    if inside curl -sf --max-time 2 -o /dev/null http://127.0.0.1:8080/readyz; then
      say "ready after $attempt s"
      return
    fi
    sleep 1
  done
  fail "not ready after $attempt s"
}

pay() {
  inside curl -sS --max-time 20 -i http://127.0.0.1:8080/payments -H 'Authorization: Bearer sk_demo_acme' \
    -H 'Idempotency-Key: fresh-1' -H 'Content-Type: application/json' \
    -d '{"accountId":"acc_1","amount":"10.00","currency":"EUR","merchantReference":"fresh-1"}' | tr -d '\r' >"$work/$1"
}

say "make run"
run
inside sh -c 'ls /usr/lib/postgresql/*/bin/postgres' >/dev/null || fail "PostgreSQL was not installed from Debian's package"
pay first
grep -q '^HTTP/1.1 201' "$work/first" || fail "no 201: $(cat "$work/first")"

say "kill -9, and make run again"
inside sh -c 'for p in /proc/[0-9]*; do [ "$(readlink $p/exe)" = /root/src/paymentsd/bin/paymentsd ] && kill -9 ${p#/proc/}; done; true'
for _ in $(seq 30); do
  inside curl -s --max-time 2 -o /dev/null http://127.0.0.1:8080/healthz || break
  sleep 1
done
run
pay again
grep -q '^HTTP/1.1 201' "$work/again" || fail "no 201: $(cat "$work/again")"
grep -qi '^Idempotent-Replayed: true' "$work/again" || fail "not replayed: $(cat "$work/again")"
charges=$(inside curl -sS --max-time 10 'http://127.0.0.1:8090/control/charges?reference=fresh-1' | grep -o '"idempotencyKey"' | wc -l)
[ "$charges" = 1 ] || fail "$charges charges"

say "passed"
