# Every target has one line of help behind "##"; `make help` lists them.

GO      ?= go
PKG     ?= ./...
ARGS    ?=

# A build from a tree without git (an archive, a container) is "dev".
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
LDFLAGS := -s -w $(if $(VERSION),-X main.version=$(VERSION))

# The race detector needs a C compiler; a machine without one still tests.
RACE ?= $(if $(shell command -v $(CC) 2>/dev/null),-race,$(info note: no C compiler, so the tests run without the race detector))
# Packages whose tests load both cores run two at a time.
TEST_FLAGS ?= -p 2 -timeout 20m
LONG_FLAGS ?= -p 1 -timeout 80m
FUZZ_TIME  ?= 10s

TOOLS_MOD   := -modfile=tools/go.mod
TESTSERVERS := bin/testservers
LINTER      := bin/golangci-lint

.DEFAULT_GOAL := help
.PHONY: help build demo bench test test-bench test-long test-short cover fuzz-short lint fmt vet check clean $(TESTSERVERS)

help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  %-12s %s\n", $$1, $$2 }'

build: ## the static binary, bin/postrider
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/postrider ./cmd/postrider

demo: build ## the whole story in a minute, without Docker; ARGS=--real-kafka for a real broker
	./bin/postrider demo $(ARGS)

bench: ## Postrider and its peers between real servers, docs/benchmarks.md; an hour, ARGS=--quick five minutes
	@cd bench && $(GO) build -o ../bin/bench .
	./bin/bench $(ARGS)

test: $(TESTSERVERS) ## all tests with the race detector, on one shared PostgreSQL and Kafka
	$(TESTSERVERS) run $(GO) test $(RACE) $(TEST_FLAGS) $(ARGS) $(PKG)

test-bench: ## the benchmark's own tests
	cd bench && $(GO) test ./...

test-long: $(TESTSERVERS) build ## the full numbers: long runs, many kills; an hour
	POSTRIDER_TEST_LONG=1 $(TESTSERVERS) run $(GO) test -count=1 $(LONG_FLAGS) $(ARGS) $(PKG)

test-short: $(TESTSERVERS) ## what answers in seconds, without the race detector
	$(TESTSERVERS) run $(GO) test -short $(TEST_FLAGS) $(ARGS) $(PKG)

cover: $(TESTSERVERS) ## the tests' coverage, bin/coverage.html
	$(TESTSERVERS) run $(GO) test -coverpkg=./... -coverprofile=bin/coverage.out $(TEST_FLAGS) $(PKG)
	$(GO) tool cover -html=bin/coverage.out -o bin/coverage.html

fuzz-short: ## every fuzz target for FUZZ_TIME
	@for pkg in $$($(GO) list ./...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
	    echo "$$pkg $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZ_TIME) $$pkg || exit 1; \
	  done; \
	done

lint: vet $(LINTER) ## go vet, golangci-lint with gofumpt, and depguard for the arrows between packages
	$(LINTER) run ./...
	cd bench && ../$(LINTER) run -c ../.golangci.yml ./...

fmt: $(LINTER) ## format as lint wants it
	$(LINTER) fmt ./...
	cd bench && ../$(LINTER) fmt -c ../.golangci.yml ./...

vet: ## go vet alone
	$(GO) vet ./...
	cd bench && $(GO) vet ./...

check: lint test test-bench ## what a change has to pass

clean: ## remove what was built
	rm -rf bin dist

# Go's own cache makes these quick when nothing has changed.
$(TESTSERVERS):
	@$(GO) build -o $@ ./internal/testkit/cmd/testservers

$(LINTER): tools/go.mod tools/go.sum
	$(GO) build $(TOOLS_MOD) -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
