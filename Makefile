# `make help` lists the targets. Everything but Go itself is fetched at a pinned
# version into .tools, where it stays: nothing is installed into the system but
# Debian's packages, and those only where root (or sudo without a password) allows.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

GO ?= go
ARGS ?=

BUF_VERSION := 1.75.0
GOLANGCI_LINT_VERSION := 2.15.0
GRPCURL_VERSION := 1.9.4
GOVULNCHECK_VERSION := 1.9.0
PSYCOPG_VERSION := 3.3.9

TOOLS := $(CURDIR)/.tools
BUF := $(TOOLS)/buf-$(BUF_VERSION)/buf
GOLANGCI_LINT := $(TOOLS)/golangci-lint-$(GOLANGCI_LINT_VERSION)/golangci-lint
GRPCURL := $(TOOLS)/grpcurl-$(GRPCURL_VERSION)/grpcurl
PSYCOPG := $(TOOLS)/psycopg-$(PSYCOPG_VERSION)

export PATH := $(TOOLS)/bin:$(PATH)

# The race detector needs cgo, and Go switches cgo off where it finds no C
# compiler. Tests are still worth running there.
RACE = $(if $(filter 1,$(shell $(GO) env CGO_ENABLED)),-race,)
GOTEST = $(GO) test $(RACE) -timeout 20m $(ARGS)

# The fault bench freezes and kills whole fleets and looks at what becomes of deadlines of seconds.
# It runs when the other packages are done: beside them it would test the machine.
FAULTS := ./server/faulttest
OTHERS = $$($(GO) list ./... | grep -v /server/faulttest)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: postgres ## run the service with a private PostgreSQL: gRPC on 127.0.0.1:7070, HTTP on 127.0.0.1:7071
	@$(MAKE) $(GRPCURL) || echo "make: no grpcurl, the printed lines need one on the PATH"
	@mkdir -p bin && $(GO) build -o bin/leasehold ./cmd/leasehold
	@exec bin/leasehold dev $(ARGS)

.PHONY: demo
demo: postgres ## prove on payments that a killed worker's job is done all the same, once
	$(GO) run ./examples/demo $(ARGS)

.PHONY: bench
bench: postgres ## measure the service against the limits of this machine (about an hour; ARGS=--quick: 3 minutes)
	@mkdir -p bin && $(GO) build -o bin/leasehold ./cmd/leasehold
	@bin/leasehold bench $(ARGS)

.PHONY: build
build: ## build the binary into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./cmd/...

.PHONY: test
test: postgres race-note ## run the tests that need Go and PostgreSQL's binaries only
	$(GOTEST) $(OTHERS)
	$(GOTEST) $(FAULTS)

.PHONY: test-full
test-full: postgres race-note $(GRPCURL) $(PSYCOPG) ## test, and the tests that need protoc, PgBouncer, grpcurl and Prometheus too
	@.ci/need protoc pgbouncer prometheus haproxy
	$(GOTEST) -tags full $(OTHERS)
	$(GOTEST) -tags full $(FAULTS)

# The workers of examples, in languages whose packages come from their own registries. -v: the report
# cards, and who did what, are what it is for.
WORKERS ?= go python node java shell

.PHONY: test-workers
test-workers: postgres race-note $(GRPCURL) ## judge, kill, drain and stop the workers of examples, in every language (4 minutes)
	@.ci/need python3-venv $(if $(filter node,$(WORKERS)),node npm) $(if $(filter java,$(WORKERS)),javac mvn)
	@for worker in $(WORKERS); do setup="examples/$$worker/setup.sh"; [ ! -x "$$setup" ] || { echo "make: $$setup"; "$$setup"; }; done
	WORKERS="$(WORKERS)" $(GOTEST) -tags workers -count=1 -v ./internal/workerstest

.PHONY: test-large
test-large: postgres ## measure buffers per job on tables with millions of rows (minutes)
	$(GO) test -timeout 60m -tags large -run '^TestLarge' -v $(ARGS) ./store/postgres/...

# A failure is repeated by the seed that it printed: make chaos CHAOS_SEED=… CHAOS_DURATION=…
CHAOS_DURATION ?= 10m
CHAOS_SEED ?=

.PHONY: chaos
chaos: postgres ## torment replicas, workers and PostgreSQL for CHAOS_DURATION and judge the histories
	$(GO) run ./internal/chaos -duration $(CHAOS_DURATION) -seed "$(CHAOS_SEED)" $(ARGS)

# Each plays for less than a minute, prints what was answered, and lists every lease in bin/.
.PHONY: rolling upgrade failover
rolling: postgres ## restart three replicas in turn under load, and judge every answer and lease
	@mkdir -p bin && $(GO) run ./internal/ha rolling -leases bin/rolling-leases.tsv $(ARGS)
upgrade: postgres ## let this version and the one before work on one database (needs git's history)
	@mkdir -p bin && $(GO) run ./internal/ha upgrade -leases bin/upgrade-leases.tsv $(ARGS)
failover: postgres ## kill the primary, promote its standby under load, and judge every answer and lease
	@mkdir -p bin && $(GO) run ./internal/ha failover -leases bin/failover-leases.tsv $(ARGS)

# All targets share this time. A failing input is kept below testdata/fuzz of its package, where
# every later `go test` tries it again.
FUZZ_SECONDS ?= 300

.PHONY: fuzz
fuzz: postgres ## feed every fuzz target for FUZZ_SECONDS in all (5 minutes)
	@GO="$(GO)" .ci/fuzz $(FUZZ_SECONDS)

.PHONY: vuln
vuln: ## look for known vulnerabilities in what is called (needs vuln.go.dev)
	$(GO) run golang.org/x/vuln/cmd/govulncheck@v$(GOVULNCHECK_VERSION) ./...

.PHONY: lint
lint: check-format check-vet check-proto check-generate $(GOLANGCI_LINT) ## check format, vet, golangci-lint, protos, and that gen/ is up to date
	$(GOLANGCI_LINT) run

.PHONY: generate
generate: $(BUF) ## make gen/ from proto/
	$(BUF) generate

.PHONY: postgres race-note grpcurl
grpcurl: $(GRPCURL)
postgres:
	@.ci/need postgresql
race-note:
	@$(if $(RACE),,echo "make: no C compiler, so the tests run without the race detector")

.PHONY: check-format check-vet check-proto check-generate
check-format:
	@unformatted="$$(find . -name '*.go' -not -path './.tools/*' -not -path '*/node_modules/*' -exec gofmt -l {} +)"; \
	if [ -n "$$unformatted" ]; then echo "not gofmt-ed:"; echo "$$unformatted"; exit 1; fi
check-vet:
	$(GO) vet -tags full,large,workers ./...
check-proto: $(BUF)
	$(BUF) lint
	@BUF=$(BUF) .ci/breaking
check-generate: $(BUF)
	@fresh="$$(mktemp -d)"; trap 'rm -rf "$$fresh"' EXIT; \
	$(BUF) generate --output "$$fresh"; \
	diff -r "$$fresh/gen" gen || { echo "gen/ is not what proto/ makes: run make generate"; exit 1; }

# npm carries buf's binary. Building it takes minutes, so that is the second choice.
$(BUF):
	@echo "make: fetching buf $(BUF_VERSION)"
	@mkdir -p $(@D) $(TOOLS)/bin
	@system="$$(uname -s | tr '[:upper:]' '[:lower:]')"; \
	machine="$$(uname -m)"; \
	case "$$system-$$machine" in \
		linux-x86_64 | darwin-x86_64) machine=x64 ;; \
		linux-arm64) machine=aarch64 ;; \
		darwin-aarch64) machine=arm64 ;; \
	esac; \
	package="buf-$$system-$$machine"; \
	if ! { command -v npm >/dev/null \
		&& cd $(@D) \
		&& npm pack --silent "@bufbuild/$$package@$(BUF_VERSION)" >/dev/null \
		&& tar -xzf "bufbuild-$$package-$(BUF_VERSION).tgz" --strip-components=2 package/bin/buf \
		&& rm "bufbuild-$$package-$(BUF_VERSION).tgz"; }; then \
		echo "make: no binary from npm, building it (minutes)"; \
		GOBIN=$(@D) $(GO) install github.com/bufbuild/buf/cmd/buf@v$(BUF_VERSION); \
	fi
	@chmod +x $@ && ln -sf $@ $(TOOLS)/bin/buf

$(GOLANGCI_LINT):
	@echo "make: building golangci-lint $(GOLANGCI_LINT_VERSION) (minutes, once)"
	@mkdir -p $(@D) $(TOOLS)/bin
	@GOBIN=$(@D) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(GOLANGCI_LINT_VERSION)
	@ln -sf $@ $(TOOLS)/bin/golangci-lint

$(GRPCURL):
	@echo "make: building grpcurl $(GRPCURL_VERSION) (once)"
	@mkdir -p $(@D) $(TOOLS)/bin
	@GOBIN=$(@D) $(GO) install github.com/fullstorydev/grpcurl/cmd/grpcurl@v$(GRPCURL_VERSION)
	@ln -sf $@ $(TOOLS)/bin/grpcurl

# For the guide's program in Python.
$(PSYCOPG):
	@.ci/need python3 pip3
	@echo "make: fetching psycopg $(PSYCOPG_VERSION)"
	@PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check \
		--target $@ "psycopg[binary]==$(PSYCOPG_VERSION)"
