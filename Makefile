# What to run; CONTRIBUTING.md says more.
#   make test          every test, on servers of its own
#   make demo          a guided tour on this machine       KEEP=1  leaves it running
#   make drill         every failure, injected and judged  NAMES="windows kills"  TIMES=300
#   make bench         throughput, latency and memory      QUICK=1 for a first impression
#   make compare       connector and polling, side by side  QUICK=1 for a first impression; writes comparison.html
#   make lint          what CI checks beside the tests
#   make test-matrix   the tests once for each server version in PG_BINS and REDIS_BINS
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := test
export PATH := $(PATH):$(HOME)/.cargo/bin

CARGO_FLAGS ?= --locked
# a profile of .config/nextest.toml
PROFILE ?= $(if $(CI),ci,default)
# folders of server programs
PG_BINS ?= $(wildcard /usr/lib/postgresql/*/bin)
REDIS_BINS ?= $(dir $(shell command -v redis-server 2>/dev/null))

.PHONY: test demo drill bench compare lint setup test-matrix

setup:
	@scripts/setup.sh

# every test is a process of its own: failpoints and servers of one must not meet those of another
test: setup
	@cargo nextest --version >/dev/null 2>&1 || { \
	  echo "test: installing cargo-nextest, once (a few minutes)"; \
	  cargo install --quiet --locked cargo-nextest; \
	}
	@cargo test --workspace $(CARGO_FLAGS) --doc --quiet
	@cargo nextest run --workspace $(CARGO_FLAGS) --profile $(PROFILE)

demo: setup
	cargo run --release $(CARGO_FLAGS) -p outflow -- demo $(if $(KEEP),--keep)

drill: setup
	cargo run --release $(CARGO_FLAGS) -p outflow -- drill $(or $(NAMES),all) $(if $(TIMES),--times $(TIMES))

bench: setup
	cargo run --release $(CARGO_FLAGS) -p outflow -- bench $(if $(QUICK),--quick)

compare: setup
	cargo run --release $(CARGO_FLAGS) -p outflow -- compare $(if $(QUICK),--quick) --html comparison.html

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets $(CARGO_FLAGS) -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps $(CARGO_FLAGS) --quiet
	@if cargo deny --version >/dev/null 2>&1; then \
	  cargo deny --offline check licenses bans sources; \
	else \
	  echo "lint: cargo-deny is not installed: licenses, bans and sources were not checked"; \
	fi

test-matrix: setup
	@for pg in $(PG_BINS); do for redis in $(REDIS_BINS); do \
	  echo "== $$($$pg/postgres --version) / $$($$redis/redis-server --version | cut -d' ' -f1-3)"; \
	  OUTFLOW_PG_BIN=$$pg OUTFLOW_REDIS_BIN=$$redis $(MAKE) --no-print-directory test || exit 1; \
	done; done
