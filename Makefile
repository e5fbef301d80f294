# Every target with a ## comment is in `make help`.
.DEFAULT_GOAL := help
SHELL := /bin/bash

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT  ?= $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)

# What the test targets run, and how: `make test PACKAGES=./slot`.
PACKAGES ?= ./...
# Packages run beside one another as there are processors: their tests mostly
# wait for servers, each for its own.
# So do the tests of one package.
TESTFLAGS ?= -race -count=1 -parallel 6
PG_VERSIONS ?= 13 14 15 16 17 18
FUZZTIME ?= 20s

# A program with the race detector sleeps for a second before it exits, unless
# told otherwise; the tests start and stop hundreds.
export GORACE = atexit_sleep_ms=50

STATICCHECK = go run honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOFUMPT     = go run mvdan.cc/gofumpt@v0.12.0

# The packages that a row passes through on its way.
HOT = ./cdc ./relay ./publisher

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The version is given here, so Go need not ask git, which refuses in a tree
# that belongs to somebody else.
.PHONY: build
build: ## build the static binary bin/walrelay
	CGO_ENABLED=0 go build -trimpath -buildvcs=false \
		-ldflags '-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)' \
		-o bin/walrelay ./cmd/walrelay

.PHONY: deps
deps: ## install what the tests need (root), or say what is missing
	@internal/testservers/install.sh

.PHONY: servers
servers: ## the same for the demo and the measurements: PostgreSQL and Redis
	@internal/testservers/install.sh servers

.PHONY: test
test: deps ## vet and test with the race detector, on real servers
	go vet ./...
	$(if $(filter ./...,$(PACKAGES)),go test -count=1 ./internal/protocol) # farther than with the race detector
	$(if $(filter ./...,$(PACKAGES)),go test -count=1 -run '^TestAllocationsPerRow$$' $(HOT)) # which the race detector changes
	go test $(TESTFLAGS) -timeout 40m $(PACKAGES)

.PHONY: test-long
test-long: deps ## the same with longer randomised runs
	WALRELAY_TEST_LONG=1 go test $(TESTFLAGS) -timeout 3h $(PACKAGES)

# A run prints its seed, which repeats its schedules; FIRST begins with the N-th.
# ONLY names the only disruptions: ONLY='slot dropped,redis flushed'.
MINUTES ?= 10
.PHONY: chaos
chaos: deps ## break everything in random schedules: SEED=… MINUTES=10 FIRST=… ONLY=…
	WALRELAY_TEST_SEED='$(SEED)' WALRELAY_TEST_MINUTES='$(MINUTES)' WALRELAY_TEST_FIRST='$(FIRST)' WALRELAY_TEST_ONLY='$(ONLY)' \
		go test -race -count=1 -v -timeout $$(($(MINUTES) + 20))m -run '^TestNothingLostWhateverBreaks$$' ./cmd/walrelay

.PHONY: test-versions
test-versions: deps ## the tests on PostgreSQL 13 to 18, one after the other (downloads them once, with npm)
	@failed=; \
	for version in $(PG_VERSIONS); do \
		bin=$$(internal/testservers/fetch-postgres.sh $$version) || exit 1; \
		echo "PostgreSQL $$version in $$bin"; \
		WALRELAY_TEST_PGBIN=$$bin go test $(TESTFLAGS) -timeout 30m $(PACKAGES) || failed="$$failed $$version"; \
	done; \
	[ -z "$$failed" ] || { echo "failed on PostgreSQL$$failed"; exit 1; }

.PHONY: lint
lint: ## vet, staticcheck, gofumpt
	go vet ./...
	$(STATICCHECK) ./...
	@files=$$($(GOFUMPT) -l .) || exit 1; \
	[ -z "$$files" ] || { echo "not formatted; run make format:"; echo "$$files"; exit 1; }

.PHONY: format
format: ## format the code as lint wants it
	$(GOFUMPT) -w .

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (20s)
	@grep -roE '^func Fuzz[A-Za-z0-9_]+' --include='*_test.go' . | \
	while IFS=: read -r file declaration; do \
		go test -run '^$$' -fuzz "^$${declaration#func }$$" -fuzztime $(FUZZTIME) "$$(dirname "$$file")" </dev/null || exit 1; \
	done

.PHONY: demo
demo: servers ## see it work: shop, relay and worker on throwaway servers: FLAGS=-keep
	go run ./cmd/demo $(FLAGS)

# FLAGS go to the program: `make cost FLAGS='-rate 500 -json'`.
FLAGS ?=
.PHONY: cost
cost: servers build ## what poll and run cost the primary, side by side (five minutes): FLAGS='-rate 500 -seconds 60'
	@go run ./bench/cost -walrelay bin/walrelay $(FLAGS)

.PHONY: runway
runway: servers build ## how well it is foretold when PostgreSQL may keep no more WAL (six minutes): FLAGS='-load pages -before 660'
	@go run ./bench/runway -walrelay bin/walrelay $(FLAGS)

# What it prints is Markdown; -json and -svg write files. Without -part it takes
# about an hour: each part is within ten minutes.
.PHONY: bench
bench: servers build ## how fast it is, beside what limits it: FLAGS='-part drain-single -json FILE -svg FILE'
	@go run ./bench -walrelay bin/walrelay $(FLAGS)

.PHONY: bench-go
bench-go: ## time, bytes and allocations of a row, decode to encode
	go test -run '^$$' -bench . $(HOT)

.PHONY: allocations
allocations: ## write bench/allocations.txt anew, which the tests compare
	go test -count=1 -p 1 -run '^TestAllocationsPerRow$$' $(HOT) -update

.PHONY: clean
clean: ## remove what build made
	rm -rf bin
