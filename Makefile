# Only what GNU make 3.81 (macOS), GNU make 4 and BSD make all read is used here.

# "make help" prints the text after the two hashes of each target.

GO    ?= go
PKGS  ?= ./...

# Replaces all flags of go test: make test PKGS=./lease TESTFLAGS='-race -v -run=TestRenew'
TESTFLAGS ?= -race -shuffle=on -count=1 -timeout=20m

# The linter is built by Go from its module, outside of this module's go.mod, and kept in bin/ under its own version and
# Go's: a linter built with an older Go than the one in use refuses to run. This version needs Go 1.26 to build.
GOLANGCI_VERSION = v2.15.0
GOLANGCI_MODULE  = github.com/golangci/golangci-lint/v2/cmd/golangci-lint
GOLANGCI         = "bin/golangci-lint-$(GOLANGCI_VERSION)-$$($(GO) env GOVERSION)/golangci-lint"

# sudo only for those who are not root and have it.
SUDO        = $$([ "$$(id -u)" = 0 ] || command -v sudo)
# Old lists of packages name files that are gone, hence the update. Its failure alone (one broken source among many) is no
# reason to stop: the install after it tells.
APT_INSTALL = { $(SUDO) apt-get -q update || true; } && \
	$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 install -y --no-install-recommends

# apt-get can't run twice at once.
.NOTPARALLEL:
.PHONY: help test cover lint fmt demo redis-server c-compiler golangci-lint

help: ## print this list
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

test: redis-server c-compiler ## go vet and all tests, under the race detector and in random order
	$(GO) vet $(PKGS)
	CGO_ENABLED=1 $(GO) test $(TESTFLAGS) $(PKGS)

cover: redis-server c-compiler ## the same tests; what they cover of all packages goes to cover.out, the total is printed
	CGO_ENABLED=1 $(GO) test $(TESTFLAGS) -covermode=atomic -coverpkg=./... -coverprofile=cover.out $(PKGS)
	@$(GO) tool cover -func=cover.out | tail -n 1

lint: golangci-lint ## golangci-lint, formatting included, and whether go.mod is tidy; changes no file
	$(GOLANGCI) run ./...
	$(GO) mod tidy -diff

fmt: golangci-lint ## format the code as lint wants it
	$(GOLANGCI) fmt ./...

demo: ## several processes share one lock on this machine; needs only Go
	$(GO) run ./cmd/rlock demo

redis-server: ## install redis-server if it is missing (apt-get or brew)
	@if command -v redis-server >/dev/null; then exit 0; fi; \
	echo "redis-server is missing; the tests start their own servers with it"; \
	if command -v apt-get >/dev/null; then $(APT_INSTALL) redis-server; \
	elif command -v brew >/dev/null; then brew install redis; \
	fi; \
	command -v redis-server >/dev/null || { echo "install Redis 6.2 or later so that redis-server is on PATH"; exit 1; }

# gcc without the C headers is not enough, and apt-get's gcc only recommends them, so the probe includes one.
c-compiler: ## install a C compiler if it is missing (apt-get): the race detector needs one
	@probe() { echo '#include <stdlib.h>' | $$($(GO) env CC) -E -x c - >/dev/null 2>&1; }; \
	if probe; then exit 0; fi; \
	echo "a C compiler or its headers are missing; the race detector needs them"; \
	if command -v apt-get >/dev/null; then $(APT_INSTALL) gcc libc6-dev; fi; \
	probe || { echo "install a C compiler, the one that 'go env CC' names (macOS: xcode-select --install)"; exit 1; }

golangci-lint: ## build the pinned linter if it is missing
	@if [ -x $(GOLANGCI) ]; then exit 0; fi; \
	echo "building golangci-lint $(GOLANGCI_VERSION), once: a minute or two"; \
	bin=$$(dirname $(GOLANGCI)) && GOBIN="$$(pwd)/$$bin" $(GO) install $(GOLANGCI_MODULE)@$(GOLANGCI_VERSION)
