# Everything here does its own set-up: as root on Debian, what is missing comes
# from apt; else see internal/devstack.

GO         ?= go
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.1
GOFUMPT     = mvdan.cc/gofumpt@v0.12.0
MODULES     = . examples/orders bench internal/migratetools

# One stack for all test binaries. Kafka is kfake inside each of them; the tests
# that need a real broker start it themselves.
UP = $(GO) run ./internal/devstack/cmd/up -only redis,postgres --

.DEFAULT_GOAL := help
.PHONY: help demo demo-compare test lint fmt kafka up setup bench-lock bench-inbox

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: setup ## the order-timeout demo: three instances, everything goes wrong, an audit (DEMO_FLAGS="-orders 5000 -seed 7")
	cd examples/orders && $(GO) build -o ../../bin/orders . && ../../bin/orders demo $(DEMO_FLAGS)

demo-compare: setup ## the same world four times: no guard, lock, inbox, both
	cd examples/orders && $(GO) build -o ../../bin/orders . && ../../bin/orders demo -compare $(DEMO_FLAGS)

test: setup ## all tests, with the race detector, on a real Redis, Postgres and Kafka
	ONCEWARD_REQUIRE=1 $(UP) sh -ec 'for m in $(MODULES); do (cd $$m && $(GO) test -race -shuffle=on -timeout 15m ./...); done; \
		ONCEWARD_DRIVER=pgx $(GO) test -race -shuffle=on -timeout 15m ./inbox'

lint: ## vet, staticcheck, gofumpt, in all modules
	for m in $(MODULES); do (cd $$m && $(GO) vet ./... && $(GO) run $(STATICCHECK) ./...) || exit 1; done
	GOOS=darwin $(GO) vet ./...
	@files=$$($(GO) run $(GOFUMPT) -l .); [ -z "$$files" ] || { echo "not formatted, run make fmt:"; echo "$$files"; exit 1; }

fmt: ## format the code
	$(GO) run $(GOFUMPT) -w .

bench-lock: setup ## the lock beside other Redis locks, a line per target (BENCH_FLAGS="-run call -rounds 3")
	cd bench && $(GO) run ./lock $(BENCH_FLAGS)

bench-inbox: setup ## the inbox beside the bare effect and beside hand-written code (BENCH_FLAGS="-run single", "-rows 1000000")
	cd bench && $(GO) run ./inbox $(BENCH_FLAGS)

kafka: ## run one real Kafka broker on loopback, from jars that Maven fetches
	$(GO) run ./internal/devstack/cmd/up -apache -only kafka

up: setup ## run Kafka, Redis and Postgres and print their addresses
	$(GO) run ./internal/devstack/cmd/up

setup:
	@internal/devstack/install.sh
