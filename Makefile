# SPDX-License-Identifier: Apache-2.0

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -s -w -X main.version=$(VERSION)

# Linters are run by version, so that go.mod does not carry them.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOFUMPT := mvdan.cc/gofumpt@v0.12.0

# Extra flags of go test, e.g. make test TESTFLAGS=-v
TESTFLAGS ?=
# Flags of internal/cmd/testkernels, e.g. make test-kernels KERNELFLAGS='--run TestFold'
KERNELFLAGS ?=
# Where make test notes what was skipped.
SKIPPED := .cache/skipped
# How long each fuzz target runs.
FUZZTIME ?= 10s
# Arguments of scripts/bench, e.g. make bench BENCHFLAGS='--runs 1 --only books'
BENCHFLAGS ?=
# Packages that the race detector slows down most and that start few goroutines
# of their own, as a regular expression; make test runs them without it. The chaos
# suite builds a whole quern with it; make nightly does that.
RACE_SKIP ?= /internal/(house|benchdata|chaos|cmd/.*|vmtest.*|testsummary)$$
# Systems beside this one that everything, tests included, has to compile for.
CROSS ?= darwin/arm64 windows/amd64 linux/arm64

# A clone of another user, or one without git, has no version control to ask.
export GOFLAGS := $(GOFLAGS) -buildvcs=false

.PHONY: help
help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/quern, one static file
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/quern ./cmd/quern

.PHONY: test
test: ## everything: install what tests need, lint, all tests, with the race detector, other kernels, other systems
	@rm -f $(SKIPPED)
	@# One after the other: each uses all cores. Skips are said again at the end.
	@for step in deps lint unit race test-kernels cross; do $(MAKE) --no-print-directory $$step; done
	@if grep -q SKIPPED $(SKIPPED); then echo "Skipped, and not listed in .ci/expected-skips:"; grep SKIPPED $(SKIPPED); \
	else echo "Nothing was skipped that .ci/expected-skips does not list."; fi

.PHONY: deps
deps: ## install the programs that tests use, where they are missing
	@scripts/setup-test-deps

.PHONY: unit
unit: ## run all tests; says which were skipped and why
	@mkdir -p $(dir $(SKIPPED))
	$(GO) run ./internal/cmd/gotest --go $(GO) --expected .ci/expected-skips --report $(SKIPPED) -- $(TESTFLAGS) ./...

.PHONY: test-kernels
test-kernels: ## run the tests of bpf/ under Debian's 6.1 and 6.12 kernels, emulated (KERNELFLAGS)
	@mkdir -p $(dir $(SKIPPED))
	GO='$(GO)' scripts/test-kernels $(KERNELFLAGS) | tee -a $(SKIPPED)

# How many seeded runs make chaos makes, and from which seed on.
RUNS ?= 200
SEED ?= 1

.PHONY: chaos
chaos: ## kill, stop, cut off and starve parts of a cluster in a lab, RUNS times from SEED on
	QUERN_CHAOS_RUNS='$(RUNS)' QUERN_CHAOS_SEED='$(SEED)' $(GO) test -count=1 -timeout 24h -v -run '^TestChaos$$' ./internal/chaos

.PHONY: nightly
nightly: ## the long variants: a thousand seeded runs, every test on every kernel, fuzzing for a minute each
	QUERN_LONG=1 $(MAKE) unit TESTFLAGS='-timeout 4h $(TESTFLAGS)'
	QUERN_LONG=1 $(MAKE) test-kernels
	GORACE=atexit_sleep_ms=0 $(GO) test -race -count=1 -timeout 1h ./internal/chaos
	$(MAKE) fuzz FUZZTIME=1m

.PHONY: test-short
test-short: ## run the quick tests
	$(GO) test -short $(TESTFLAGS) ./...

.PHONY: race
race: ## run the tests with the race detector
	@if [ "$$($(GO) env CGO_ENABLED)" = 1 ] && command -v "$$($(GO) env CC)" >/dev/null; then \
	  packages=$$($(GO) list ./... | grep -v -E '$(RACE_SKIP)'); \
	  echo $(GO) test -race $(TESTFLAGS) "(all packages but $(RACE_SKIP))"; \
	  GORACE="atexit_sleep_ms=0 $${GORACE:-}" $(GO) test -race $(TESTFLAGS) $$packages; \
	else mkdir -p $(dir $(SKIPPED)); \
	  echo "race: SKIPPED, the race detector needs a C compiler (apt-get install gcc libc6-dev)" | tee -a $(SKIPPED); \
	  [ -z "$${CI:-}" ]; fi

.PHONY: vet
vet: ## run go vet
	$(GO) vet ./...

.PHONY: generate
generate: ## make the BPF objects and protobuf files anew (needs clang-19, llvm-19, libbpf-dev, protobuf-compiler)
	$(GO) generate ./bpf/... ./shuffle/... ./mapreduce/...

.PHONY: check-generated
check-generated: ## check that generated files are those that make generate makes
	@mkdir -p $(dir $(SKIPPED))
	GO='$(GO)' scripts/check-generated | tee -a $(SKIPPED)

.PHONY: lint
lint: vet check-generated ## run go vet, staticcheck and gofumpt, and check generated files
	$(GO) run $(STATICCHECK) ./...
	@echo $(GO) run $(GOFUMPT) -l .
	@unformatted=$$($(GO) run $(GOFUMPT) -l .); \
	if [ -n "$$unformatted" ]; then echo "not formatted (make fmt):"; echo "$$unformatted"; exit 1; fi

.PHONY: fmt
fmt: ## format all Go files
	$(GO) run $(GOFUMPT) -w .

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (10s)
	GO='$(GO)' FUZZTIME='$(FUZZTIME)' scripts/fuzz

.PHONY: bench
bench: ## make the data, run Quern beside mawk, sort and DuckDB, print ratios (BENCHFLAGS)
	scripts/bench $(BENCHFLAGS)

.PHONY: cover
cover: ## run all tests, write coverage.out and print the total
	$(GO) test -coverprofile=coverage.out -coverpkg=./... ./...
	$(GO) tool cover -func=coverage.out | tail -n 1

.PHONY: cross
cross: ## compile everything, tests included, for other systems (CROSS)
	@for target in $(CROSS); do \
	  echo "CGO_ENABLED=0 GOOS=$${target%/*} GOARCH=$${target#*/} $(GO) build, vet ./..."; \
	  CGO_ENABLED=0 GOOS=$${target%/*} GOARCH=$${target#*/} $(GO) build ./...; \
	  CGO_ENABLED=0 GOOS=$${target%/*} GOARCH=$${target#*/} $(GO) vet ./...; \
	done

.PHONY: clean
clean: ## remove what was built and measured
	rm -rf bin .bench .cache coverage.out coverage.html
