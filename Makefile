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
# How long each fuzz target runs.
FUZZTIME ?= 10s
# Arguments of scripts/bench, e.g. make bench BENCHFLAGS='--runs 1 --only books'
BENCHFLAGS ?=
# Packages that the race detector slows down most and that start few goroutines
# of their own, as a regular expression; make test runs them without it.
RACE_SKIP ?= /internal/(house|benchdata|cmd/.*)$$
# Systems beside this one that everything, tests included, has to compile for.
CROSS ?= darwin/arm64 windows/amd64 linux/arm64

# A clone of another user, or one without git, has no version control to ask.
export GOFLAGS := $(GOFLAGS) -buildvcs=false

.PHONY: help
help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/quern, one static file
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/quern ./cmd/quern

.PHONY: test
test: deps lint unit race cross ## everything: install what tests need, lint, all tests, again with the race detector, other systems

.PHONY: deps
deps: ## install the programs that tests use, where they are missing
	@scripts/setup-test-deps

.PHONY: unit
unit: ## run all tests
	$(GO) test $(TESTFLAGS) ./...

.PHONY: test-short
test-short: ## run the quick tests
	$(GO) test -short $(TESTFLAGS) ./...

.PHONY: race
race: ## run the tests with the race detector
	@if [ "$$($(GO) env CGO_ENABLED)" = 1 ] && command -v "$$($(GO) env CC)" >/dev/null; then \
	  packages=$$($(GO) list ./... | grep -v -E '$(RACE_SKIP)'); \
	  echo $(GO) test -race $(TESTFLAGS) "(all packages but $(RACE_SKIP))"; \
	  $(GO) test -race $(TESTFLAGS) $$packages; \
	else echo "race: skipped, the race detector needs a C compiler (apt-get install gcc libc6-dev)"; fi

.PHONY: vet
vet: ## run go vet
	$(GO) vet ./...

.PHONY: lint
lint: vet ## run go vet, staticcheck and gofumpt
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
	rm -rf bin .bench coverage.out coverage.html
