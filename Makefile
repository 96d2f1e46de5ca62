# Two commands matter: make run, make test. Everything needs Go and make; the rest is found, installed or built on the way.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# Tools are pinned by tools/go.mod and built once for each change of it.
TOOLS := $(CURDIR)/.tools
TOOLS_BUILT := $(TOOLS)/.built

# Where goroutines share something; the rest would only make the race detector slow.
RACE := ./internal/api/... ./internal/broker/... ./internal/gather/... ./internal/idempotency/... ./internal/inbox/... ./internal/ledger/... \
        ./internal/outbox/... ./internal/payments/... ./internal/pgtest/... ./internal/provider/... ./internal/receipts/... ./internal/tenants/... ./cmd/...

.PHONY: help
help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: build ## run everything in one process on a private PostgreSQL under .data/
	@exec bin/paymentsd dev

.PHONY: build
build: ## build the static binary bin/paymentsd
	CGO_ENABLED=0 go build -trimpath -o bin/paymentsd ./cmd/paymentsd

.PHONY: test
test: ## run every test; they start their own PostgreSQL
	go test -count=1 ./...

.PHONY: race
race: ## run the concurrent packages' tests under the race detector (needs a C compiler)
	CGO_ENABLED=1 go test -race -short -count=1 $(RACE)

# Each target for a bounded time. Their seeds are the field cases, and run with every "make test" too.
FUZZ_TIME ?= 10s
FUZZED := events:FuzzRead money:FuzzParse idempotency:FuzzParseKey idempotency:FuzzSum api:FuzzBody api:FuzzFingerprint

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZ_TIME (10s)
	@set -e; for target in $(FUZZED); do \
		go test ./internal/$${target%%:*} -run '^$$' -fuzz "^$${target##*:}\$$" -fuzztime $(FUZZ_TIME); done

.PHONY: bench-cleanup
bench-cleanup: build ## measure what cleaning a million rows costs the payments made beside it
	go run ./bench/cleanup -bin bin/paymentsd

.PHONY: bench
bench: build ## measure the service against what PostgreSQL can do for the same writes (ARGS=-short, ARGS=--json, …)
	@go run ./bench/service -bin bin/paymentsd $(ARGS)

.PHONY: bench-check
bench-check: build ## count round trips, commits and WAL of a payment and hold them to their limits
	@go run ./bench/service -bin bin/paymentsd -short

.PHONY: bench-micro
bench-micro: ## Go micro-benchmarks of decoder, fingerprint and rendering, for benchstat
	@go test -run '^$$' -bench . -benchmem -count 10 ./internal/money ./internal/idempotency ./internal/api

.PHONY: bench-relay
bench-relay: ## measure how many events a second one relay publishes to the embedded broker
	@go run ./bench/relay

.PHONY: generate
generate: $(TOOLS_BUILT) ## write again what is generated: queries, printed tables
	$(TOOLS)/sqlc generate
	PAYMENTSD_REWRITE_DOCS=1 go test -count=1 ./internal/payments ./internal/api ./internal/config -run 'IsCurrent|AreCurrent'

.PHONY: lint
lint: $(TOOLS_BUILT) ## gofmt, go vet, staticcheck
	@test -z "$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go'))" || { echo "gofmt these:"; gofmt -l $$(git ls-files -co --exclude-standard '*.go'); exit 1; }
	go vet ./...
	$(TOOLS)/staticcheck ./...

.PHONY: verify
verify: lint ## prove that generated files and go.mod are current, and lint
	go mod tidy -diff
	cd tools && go mod tidy -diff
	scripts/verify-generated.sh

.PHONY: compose-test
compose-test: ## start docker-compose.yml for real and send the README's four requests through it
	scripts/compose-test.sh

.PHONY: fresh-machine-test
fresh-machine-test: ## prove make run on a machine image that has no PostgreSQL
	scripts/fresh-machine-test.sh

.PHONY: clean
clean: ## remove what was built; .data/ stays
	rm -rf bin .tools

$(TOOLS_BUILT): tools/go.mod tools/go.sum
	@mkdir -p $(TOOLS)
	GOBIN=$(TOOLS) CGO_ENABLED=1 go -C tools install tool
	@touch $@
