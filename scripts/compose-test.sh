#!/usr/bin/env bash
# Builds and starts docker-compose.yml on this machine's Docker, sends the README's four requests through it, kills one API
# replica, and takes everything down again. It uses free ports and a project of its own, so it disturbs no other one.
set -euo pipefail
cd "$(dirname "$0")/.."

export COMPOSE_PROJECT_NAME=paymentsd-test-$$
export HTTP_PORT=0 HTTP_PORT_2=0 PROVIDER_PORT=0 MAIL_PORT=0 # Docker takes free ones
GOPROXY=$(go env GOPROXY)
GOSUMDB=$(go env GOSUMDB)
export GOPROXY GOSUMDB
# The images that Dockerfile and docker-compose.yml start from; "every image is looked after" checks the list.
base_images=(golang:1.26-bookworm postgres:15-bookworm nats:2.15-alpine axllent/mailpit:v1.33.1)

if docker compose version >/dev/null 2>&1; then
  compose=(docker compose)
else
  compose=(docker-compose)
fi

work=$(mktemp -d)
step='start'

say() { step=$*; echo "compose-test: $*"; }

fail() { echo "compose-test: FAILED at '$step': $*" >&2; exit 1; }

finish() {
  local code=$?
  trap - EXIT
  if [ $code != 0 ]; then
    echo "compose-test: FAILED at '$step'; what the containers say:" >&2
    "${compose[@]}" ps >&2 || true
    "${compose[@]}" logs --no-color --tail=60 >&2 || true
  fi
  "${compose[@]}" down --volumes --remove-orphans >"$work/down.log" 2>&1 || { cat "$work/down.log" >&2; code=1; }
  rm -rf "$work"
  exit $code
}

# pay NAME BASE_URL KEY AMOUNT sends a payment and keeps its status, headers and body in files called NAME.*
pay() {
  curl -sS --max-time 20 -o "$work/$1.body" -D "$work/$1.headers" -w '%{http_code}' "$2/payments" \
    -H 'Authorization: Bearer sk_demo_acme' -H "Idempotency-Key: $3" -H 'Content-Type: application/json' \
    -d '{"accountId":"acc_1","amount":"'"$4"'","currency":"EUR","merchantReference":"compose-1"}' >"$work/$1.status"
}

status_is() {
  [ "$(cat "$work/$1.status")" = "$2" ] || fail "$1: status $(cat "$work/$1.status"), not $2: $(cat "$work/$1.body")"
}

has_header() {
  tr -d '\r' <"$work/$1.headers" | grep -qix "$2" || fail "$1: no header '$2' in: $(cat "$work/$1.headers")"
}

body_has() {
  grep -q "$2" "$work/$1.body" || fail "$1: no $2 in: $(cat "$work/$1.body")"
}

same_body() {
  cmp -s "$work/$1.body" "$work/$2.body" || fail "bodies of $1 and $2 differ: $(cat "$work/$1.body") / $(cat "$work/$2.body")"
}

published() { echo "http://$("${compose[@]}" port "$1" "$2")"; }

# ready URL waits for readiness: container health comes in steps of seconds, and recovery of a loaded machine takes some.
ready() {
  local attempt
  for attempt in $(seq 90); do
    if curl -sf --max-time 2 -o /dev/null "$1/readyz"; then
      return
    fi
    sleep 1
  done
  fail "$1 is not ready after $attempt s"
}

trap finish EXIT
trap "exit 130" INT TERM

say "every image is looked after"
for image in $(sed -n 's/^FROM \([^ ]*:[^ ]*\).*/\1/p' Dockerfile) $(sed -n 's/^ *image: \([^ ]*\)$/\1/p' docker-compose.yml); do
  case " ${base_images[*]} paymentsd:local " in *" $image "*) ;; *) fail "$image is not in base_images" ;; esac
done
scripts/base-images.sh "${base_images[@]}"

say "build"
"${compose[@]}" build migrate >"$work/build.log" 2>&1 || { tail -40 "$work/build.log" >&2; fail "docker build"; }
[ "$(docker image inspect --format '{{.Config.User}}' paymentsd:local)" = 10001:10001 ] || fail "the image runs as root"

say "up"
"${compose[@]}" up -d --no-build >"$work/up.log" 2>&1 || { tail -40 "$work/up.log" >&2; fail "up"; }
one=$(published api-1 8080)
two=$(published api-2 8080)
provider=$(published provider 8090)

say "both replicas become ready ($one, $two)"
ready "$one"
ready "$two"

say "a payment is settled: 201"
pay first "$one" compose-key-1 10.00
status_is first 201
body_has first SETTLED
has_header first 'Location: /payments/pay_.*'

say "the same again is a replay of the same bytes"
pay again "$one" compose-key-1 10.00
status_is again 201
has_header again 'Idempotent-Replayed: true'
same_body first again

say "another amount under the same key is refused: 409"
pay changed "$one" compose-key-1 11.00
status_is changed 409
body_has changed IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST

say "the other replica replays the same bytes"
pay other "$two" compose-key-1 10.00
status_is other 201
has_header other 'Idempotent-Replayed: true'
same_body first other

say "the provider executed exactly one charge"
curl -sS --max-time 10 "$provider/control/charges?reference=compose-1" >"$work/charges"
charges=$(grep -o '"idempotencyKey"' "$work/charges" | wc -l)
[ "$charges" = 1 ] || fail "$charges charges: $(cat "$work/charges")"

say "the ledger has the payment"
for _ in $(seq 30); do
  curl -sS --max-time 10 -o "$work/ledger" "$one/accounts/acc_1/ledger" -H 'Authorization: Bearer sk_demo_acme'
  grep -q PAYMENT_DEBIT "$work/ledger" && break
  sleep 1
done
grep -q PAYMENT_DEBIT "$work/ledger" || fail "no entry in: $(cat "$work/ledger")"

say "one receipt arrives in the mail catcher"
for _ in $(seq 30); do
  curl -sS --max-time 10 -o "$work/mails" "$(published mail 8025)/api/v1/messages"
  grep -q '"messages_count":1' "$work/mails" && break
  sleep 1
done
grep -q '"messages_count":1' "$work/mails" || fail "not one mail: $(cat "$work/mails")"

say "with one replica killed, the other serves"
"${compose[@]}" kill api-1 >/dev/null 2>&1
pay survivor "$two" compose-key-1 10.00
status_is survivor 201
same_body first survivor

say "every container that should run is healthy"
for service in provider api-2 recover relay consume-ledger consume-receipts send-receipts cleanup postgres; do
  id=$("${compose[@]}" ps -q "$service")
  for _ in $(seq 30); do
    health=$(docker inspect --format '{{.State.Health.Status}}' "$id")
    [ "$health" = starting ] || break
    sleep 1
  done
  [ "$health" = healthy ] || fail "$service is $health"
done

say "passed"
