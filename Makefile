# What to run; CONTRIBUTING.md says more.
#   make test          every test, on servers of its own
#   make demo          a guided tour on this machine       KEEP=1  leaves it running
#   make drill         every failure, injected and judged  NAMES="windows kills"  TIMES=300
#   make bench         throughput, latency and memory      QUICK=1 for a first impression
#   make compare       connector and polling, side by side  QUICK=1 for a first impression; writes comparison.html
#   make lint          what CI checks beside the tests
#   make test-matrix   the tests against real servers, once for each pair of PG_BINS and REDIS_BINS
#   make servers       brings PostgreSQL 16, 17, 18 and Redis 8 for it
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := test
export PATH := $(PATH):$(HOME)/.cargo/bin

CARGO_FLAGS ?= --locked
# a profile of .config/nextest.toml
PROFILE ?= $(if $(CI),ci,default)
# where `make servers` puts further versions; root's own cache is closed to the user that PostgreSQL runs as
OUTFLOW_SERVERS ?= $(if $(filter 0,$(shell id -u)),/var/cache,$(or $(XDG_CACHE_HOME),$(HOME)/.cache))/outflow-servers
# folders of server programs: those of the machine, and those
PG_BINS ?= $(wildcard /usr/lib/postgresql/*/bin) \
  $(patsubst %/postgres,%,$(wildcard $(OUTFLOW_SERVERS)/*/*/pginstall*/bin/postgres))
REDIS_BINS ?= $(patsubst %/redis-server,%,$(shell command -v redis-server 2>/dev/null) \
  $(wildcard $(OUTFLOW_SERVERS)/*/*/*/*/bin/redis-server))
# what depends on the servers: integration tests, without the lab and the sandbox's own, and without TLS, which
# not every Redis is built with
MATRIX ?= kind(test) and not package(outflow-sandbox) and not binary(lab) and not test(/^tls::/)

.PHONY: test demo drill bench compare lint setup nextest test-matrix servers

setup:
	@scripts/setup.sh

nextest: setup
	@cargo nextest --version >/dev/null 2>&1 || { \
	  echo "test: installing cargo-nextest, once (a few minutes)"; \
	  cargo install --quiet --locked cargo-nextest; \
	}

# every test is a process of its own: failpoints and servers of one must not meet those of another
test: nextest
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

test-matrix: nextest
	@for pg in $(PG_BINS); do for redis in $(REDIS_BINS); do \
	  echo "== $$($$pg/postgres --version) / $$($$redis/redis-server --version | cut -d' ' -f1-3)"; \
	  OUTFLOW_PG_BIN=$$pg OUTFLOW_REDIS_BIN=$$redis cargo nextest run --workspace $(CARGO_FLAGS) \
	    --profile $(PROFILE) -E '$(MATRIX)' || exit 1; \
	done; done

servers:
	@scripts/servers.sh $(OUTFLOW_SERVERS)
