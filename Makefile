# Must work with GNU make 3.81 (macOS), GNU make 4 and BSD make.

# "make help" prints the text after each target's two hashes.

GO    ?= go

# The newest Go of docs/servers.md, with which CI runs everything. The oldest stands in each go.mod, see oldest below.
GO_NEWEST = go1.27.4

# The modules other than the library's, see CONTRIBUTING.md. "make test" runs the TESTED ones. Users import or install the PUBLISHED
# ones: they have no replace, and require a release of the library.
TESTED    = rlock_test cmd/rlock rlockgoredis rlockotel rlockotel/grafana rlocktest rlockvet $(ADAPTERS)
PUBLISHED = cmd/rlock rlockgoredis rlockotel rlocktest rlockvet $(ADAPTERS)
ADAPTERS  = adapters/certmagic adapters/gocron adapters/tusd
MODULES   = $(TESTED) $(EXAMPLES) $(FAULTS) $(BENCH) $(SIM) $(OTHERS)/cheerego

# The first takes longest: the others run beside it.
PKGS  ?= $(TESTED:%=./%/...) ./...

# Replaces all flags of go test: make test PKGS=./lease TESTFLAGS='-v -run=TestRenew'
# -parallel: most tests wait, for leases to end or for servers to start, and so can do it together. -vet: make lint has all of it.
# -ldflags: thirty programs are linked sooner without what only debuggers read.
TESTFLAGS ?= -vet=off -shuffle=on -count=1 -parallel=32 -timeout=20m -ldflags=-w
# The packages wait half of their time: twice as many run at once as there are processors.
AT_ONCE    = -p=$$((2 * $$(getconf _NPROCESSORS_ONLN)))
# The race detector makes tests in virtual time five times as long, since all that they do is compute.
RACEFLAGS ?= -race $(TESTFLAGS) -parallel=16

# Rare garbage collection saves a tenth of the tests' CPU, and a third of the simulator's.
RARE_GC = GOGC=400

# What the race detector needs. Each program built with it, tests and what they start, sleeps for a second before it exits, unless told
# otherwise.
RACE = GORACE="$${GORACE-atexit_sleep_ms=0}" CGO_ENABLED=1

# The linter is built from its module, outside this module's go.mod, and kept in bin/ under its version and Go's: a linter built
# with an older Go than the current one refuses to run. This version needs Go 1.26 to build.
GOLANGCI_VERSION = v2.15.0
GOLANGCI_MODULE  = github.com/golangci/golangci-lint/v2/cmd/golangci-lint
GOLANGCI         = "bin/golangci-lint-$(GOLANGCI_VERSION)-$$($(GO) env GOVERSION)/golangci-lint"

# The Redisson versions of the interop tests; docs/redisson.md has the reasons. The newest is in the pom, for a plain `mvn package`.
REDISSON         = rlock_test/redisson
REDISSON_NEWEST  = $$(sed -n 's:.*<redisson.version>\(.*\)</redisson.version>.*:\1:p' $(REDISSON)/pom.xml)
REDISSON_SHARDED = 3.28.0
REDISSON_OLDEST  = 3.10.6
# Other libraries that speak Redisson's format, see docs/beside-other-libraries.md.
OTHERS           = rlock_test/others
# -parallel: tests that wait for leases to end do so at the same time, in five settings.
INTEROPFLAGS    ?= -race -count=1 -parallel=64 -timeout=30m

# The servers of test-servers, see rlock_test/servers.sh.
SERVERS      ?= installed redis-6.2 redis-8.2 redis-newest valkey-8.1 valkey-9.1 redict haproxy
SERVERSFLAGS ?= $(REALFLAGS)

# Of the virtual world's tests on real servers. -parallel: they have the leases and patience of users, not those of the other tests on real servers.
REALFLAGS    ?= -vet=off -shuffle=on -count=1 -parallel=16 -timeout=30m -ldflags=-w

# The fault tests. SEED replays a run, DURATION lengthens the random parts. The load tests have too many goroutines for the race
# detector, and take most of the time: CI runs all others, from a fixed seed.
# -parallel as above: most of these tests wait.
FAULTS       = rlock_test/faults
FAULTS_LOAD  = '^TestLoad'
FAULTSFLAGS ?= -v -count=1 -parallel=16

# The simulator. SEED is the first world's; PROCESSES and TIME replace random values. It runs without the race detector, because the
# number of worlds matters more.
SIM       = internal/testing/sim
WORLDS   ?= 300
SIMFLAGS ?= -count=1 -timeout=0

# Dashboard and alerts, with a program that shows them.
GRAFANA = rlockotel/grafana

# The vet tool. Lint builds it, and runs it on all modules, including tests behind build tags.
VET      = rlockvet
VET_TAGS = -tags=interop,programs,prometheus,servers

# Programs to copy from. interop builds the Java side of one of them.
EXAMPLES = examples
MIGRATE  = examples/migrate/java

PROGRAMS_RUN = ^(TestReport.*|TestCompletion.*)$$

# The bench, with its own go.work, and its Java worker. BENCHFLAGS: see "cd bench && go run . -h".
BENCH     = bench
BENCH_JAR = redisson/target/worker.jar

# sudo if it is there and the user is not root.
SUDO        = $$([ "$$(id -u)" = 0 ] || command -v sudo)
# The update is needed because old package lists name deleted files. It may fail (one broken source among many): the install
# decides.
APT_INSTALL = { $(SUDO) apt-get -q update || true; } && \
	$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 install -y --no-install-recommends

# Debian's packages of servers start one, now and at each boot. PostgreSQL's can be told not to; of the others that is undone.
NO_SERVICE = $(SUDO) systemctl disable --now

# apt-get can't run twice at once.
.NOTPARALLEL:
.PHONY: help test race oldest test-real examples interop interop-peers seeded sim sim-ci fleet test-servers faults faults-ci bench bench-quick dashboard programs cover lint tidy api licences vulncheck version release-check portable fmt demo picture redis-server haproxy chromium shells postgres c-compiler jdk node golangci-lint

help: ## print this list
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

test: redis-server ## all tests, in random order
	$(RARE_GC) $(GO) test $(AT_ONCE) $(TESTFLAGS) $(PKGS)

race: redis-server c-compiler ## the same tests under the race detector
	$(RARE_GC) $(RACE) $(GO) test $(RACEFLAGS) $(PKGS)

oldest: redis-server ## vet all modules, and test what depends on Go's version, with the oldest Go that go.mod allows
	TESTFLAGS='$(TESTFLAGS)' $(RARE_GC) .ci/oldest $(TESTED) $(SIM) $(EXAMPLES)

test-real: redis-server ## the tests of the virtual world on real servers and in real time, see docs/internals/testing.md
	RLOCK_TEST_WORLD=real $(GO) test $(REALFLAGS) ./rlock_test

examples: redis-server postgres c-compiler ## run the examples as processes, and check what they print
	cd $(EXAMPLES) && $(GO) vet ./... && $(RACE) $(GO) test $(RACEFLAGS) ./...

interop: redis-server c-compiler interop-peers ## lock together with the real Redisson in several versions, node-redisson and others
	newest=$(REDISSON_NEWEST); set -x; REDISSON_NEWEST="$$newest" REDISSON_SHARDED=$(REDISSON_SHARDED) REDISSON_OLDEST=$(REDISSON_OLDEST) \
		$(RACE) $(GO) test -tags interop -run '^TestInterop' $(INTEROPFLAGS) ./rlock_test && \
		cd $(EXAMPLES) && $(RACE) $(GO) test -tags interop $(INTEROPFLAGS) ./migrate

interop-peers: jdk node ## build what interop locks together with
	@$(JDK_PATH); newest=$(REDISSON_NEWEST); \
	for version in "$$newest" $(REDISSON_SHARDED) $(REDISSON_OLDEST); do \
		jar=$(REDISSON)/target/$$version/peer.jar; \
		if [ -f "$$jar" ] && [ -z "$$(find $(REDISSON)/pom.xml $(REDISSON)/src -newer "$$jar")" ]; then continue; fi; \
		echo "building the Java side with Redisson $$version"; \
		mvn -B -q -Dstyle.color=never -f $(REDISSON)/pom.xml -Dredisson.version="$$version" package && touch "$$jar" || exit 1; \
	done; \
	jar=$(MIGRATE)/target/migrate.jar; \
	if [ ! -f "$$jar" ] || [ -n "$$(find $(MIGRATE)/pom.xml $(MIGRATE)/src -newer "$$jar")" ]; then \
		mvn -B -q -Dstyle.color=never -f $(MIGRATE)/pom.xml package && touch "$$jar" || exit 1; \
	fi; \
	( cd $(OTHERS)/cheerego && $(GO) build -o target/cheerego . ) || exit 1; \
	installed=$(OTHERS)/node/node_modules/.package-lock.json; \
	if [ ! -f "$$installed" ] || [ -n "$$(find $(OTHERS)/node/package-lock.json -newer "$$installed")" ]; then \
		( cd $(OTHERS)/node && npm ci --omit=peer --no-audit --no-fund && touch node_modules/.package-lock.json ) || exit 1; \
	fi

seeded: redis-server ## put bugs into the engine, one at a time, and show which test finds each; half an hour
	$(GO) run ./internal/testing/seeded

sim: ## worlds of many processes, with faults, on a simulated clock: make sim SEED=7 WORLDS=1000 PROCESSES=50 TIME=10m
	cd $(SIM) && SIM_SEED='$(SEED)' SIM_WORLDS='$(WORLDS)' SIM_PROCESSES='$(PROCESSES)' SIM_TIME='$(TIME)' \
		$(RARE_GC) $(GO) test $(SIMFLAGS) -skip '^TestFleet' .

sim-ci: ## a minute of the simulator, with fixed seeds
	cd $(SIM) && SIM_SEED=1 SIM_WORLDS=60 $(RARE_GC) $(GO) test $(SIMFLAGS) -timeout=30m -short -skip '^TestFleet' .

fleet: ## a thousand processes on one lock, and on ten thousand: make fleet TIME=10m
	cd $(SIM) && SIM_PROCESSES='$(PROCESSES)' SIM_TIME='$(TIME)' $(RARE_GC) $(GO) test $(SIMFLAGS) -v -run '^TestFleet' .

test-servers: redis-server c-compiler $(filter haproxy,$(SERVERS)) ## the same tests on Redis 6.2 to the newest, Valkey and Redict, and some behind HAProxy; SERVERS='redis-6.2 valkey-9.1' for some
	@python3 -m pip --version >/dev/null 2>&1 || { $(APT_INSTALL) python3-pip; }
	@TESTFLAGS='$(SERVERSFLAGS)' rlock_test/servers.sh $(SERVERS)

faults: redis-server c-compiler ## histories, single faults and mixed ones: make faults SEED=7 DURATION=1h
	timeout=30m; [ -z '$(DURATION)' ] || timeout=0; \
	export FAULTS_SEED='$(SEED)' FAULTS_DURATION='$(DURATION)'; cd $(FAULTS) && \
		$(RACE) $(GO) test -race -skip $(FAULTS_LOAD) -timeout="$$timeout" $(FAULTSFLAGS) ./... && \
		$(GO) test -run $(FAULTS_LOAD) -timeout="$$timeout" $(FAULTSFLAGS) ./...

faults-ci: redis-server c-compiler ## the fault tests without load, with one round of mixed faults: five minutes
	cd $(FAULTS) && FAULTS_SEED=1 FAULTS_DURATION=25s $(RACE) $(GO) test -race -skip $(FAULTS_LOAD) -timeout=30m $(FAULTSFLAGS) -parallel=8 ./...

bench: redis-server jdk ## rlock, its floors and its peers, Redisson too, side by side; rewrites docs/bench
	@$(JDK_PATH); jar=$(BENCH)/$(BENCH_JAR); \
	if [ ! -f "$$jar" ] || [ -n "$$(find $(BENCH)/redisson/pom.xml $(BENCH)/redisson/src -newer "$$jar")" ]; then \
		echo "building the Java side"; \
		mvn -B -q -Dstyle.color=never -f $(BENCH)/redisson/pom.xml package && touch "$$jar" || exit 1; \
	fi; \
	set -x; cd $(BENCH) && $(GO) run . -jar $(BENCH_JAR) -out ../docs/bench $(BENCHFLAGS)

bench-quick: redis-server ## the same in a minute, without Java unless it is built: shows that the bench works
	@$(JDK_PATH); set -x; cd $(BENCH) && $(GO) vet ./... && $(GO) test -count=1 ./... && \
		$(GO) run . -quick -jar $(BENCH_JAR) $(BENCHFLAGS)

dashboard: redis-server ## run the dashboard's queries and the alerts on a real Prometheus; installs it if missing (apt-get or brew)
	@if ! command -v promtool >/dev/null; then \
		echo "prometheus is missing"; \
		if command -v apt-get >/dev/null; then $(APT_INSTALL) prometheus && { $(NO_SERVICE) prometheus || true; }; elif command -v brew >/dev/null; then brew install prometheus; fi; \
	fi
	cd $(GRAFANA) && $(GO) test -tags prometheus -count=1 -v ./...

# PROGRAMS_RUN: the tests whose names match; the tag adds them to those of make test.
programs: redis-server chromium shells ## the page of rlock report in a real Chromium, completion in real shells; installs them
	cd cmd/rlock && $(GO) test -tags programs -run '$(PROGRAMS_RUN)' -count=1 -timeout=10m -v .

cover: redis-server ## the same tests with coverage of all packages: details in cover.out, the total is printed
	$(GO) test $(TESTFLAGS) -covermode=atomic -coverpkg=github.com/go-rlock/rlock/... -coverprofile=cover.out $(PKGS)
	@$(GO) tool cover -func=cover.out | tail -n 1

lint: golangci-lint ## golangci-lint with formatting, rlockvet, and a check that each go.mod is tidy; changes no file
	cd $(VET) && $(GO) build -o ../bin/rlockvet .
	golangci="$$(pwd)/"$(GOLANGCI) rlockvet="$$(pwd)/bin/rlockvet" tidy="$$(pwd)/.ci/tidy" && for module in . $(MODULES); do \
		( cd "$$module" && "$$golangci" run ./... && $(GO) vet -vettool="$$rlockvet" $(VET_TAGS) ./... && "$$tidy" -diff ) || exit 1; \
	done
	.ci/licences -diff

# go list -m all writes a new, complete go.work.sum.
tidy: ## go mod tidy, for each module, and a new go.work.sum
	tidy="$$(pwd)/.ci/tidy" && for module in . $(MODULES); do ( cd "$$module" && "$$tidy" ) || exit 1; done
	rm -f go.work.sum && $(GO) list -m all >/dev/null

api: ## write the API to docs/api, which a test compares
	$(GO) test ./rlock_test -run '^TestAPI$$' -rewrite

version: ## make the published modules require a release of the library: make version VERSION=v0.1.0
	for module in $(PUBLISHED); do $(GO) mod edit -require='github.com/go-rlock/rlock@$(VERSION)' "$$module/go.mod" || exit 1; done
	$(MAKE) tidy

licences: ## write the linked modules and their licences to docs/servers.md; lint compares
	.ci/licences

vulncheck: ## govulncheck for all published modules; VULNDB=file:///somewhere if the database is unreachable
	VULNDB='$(VULNDB)' .ci/vulncheck $(PUBLISHED)

release-check: ## check that the last commit can be released, and write SBOMs to bin/sbom: make release-check VERSION=v0.1.0
	.ci/release-check '$(VERSION)' $(PUBLISHED)

portable: ## go vet for 32 bits and for Windows, and a program under FIPS 140
	GOARCH=386 $(GO) vet $(PKGS)
	GOOS=windows $(GO) vet $(PKGS)
	GODEBUG=fips140=only $(GO) run ./cmd/rlock version

fmt: golangci-lint ## format the code
	$(GOLANGCI) fmt ./...

demo: ## several processes share one lock on this machine; needs only Go
	$(GO) run ./cmd/rlock demo

# The test that writes docs/deadlocks.svg also checks the text in docs/cli.md.
picture: chromium ## draw docs/demo.svg from a run of the demo (script(1) of util-linux gives it a terminal), docs/deadlocks.svg, docs/report.png
	script -qec '$(GO) run ./cmd/rlock demo' /dev/null </dev/null | sed -n '/Who held/,/killed/p' | $(GO) run ./internal/termsvg >docs/demo.svg.new && mv docs/demo.svg.new docs/demo.svg
	RLOCK_TRANSCRIPT="$$PWD/docs/deadlocks.new" $(GO) test -count=1 -run='^TestDeadlocksOfTheDocs$$' ./cmd/rlock && \
		$(GO) run ./internal/termsvg <docs/deadlocks.new >docs/deadlocks.svg && cat docs/deadlocks.new && rm docs/deadlocks.new
	RLOCK_PICTURE="$$PWD/docs/report.png" $(GO) test -count=1 -tags programs -run='^TestReportOfARealRun$$' ./cmd/rlock

redis-server: ## install redis-server if it is missing (apt-get or brew)
	@if command -v redis-server >/dev/null; then exit 0; fi; \
	echo "redis-server is missing; the tests start their own servers with it"; \
	if command -v apt-get >/dev/null; then $(APT_INSTALL) redis-server && { $(NO_SERVICE) redis-server || true; }; \
	elif command -v brew >/dev/null; then brew install redis; \
	fi; \
	command -v redis-server >/dev/null || { echo "install Redis 6.2 or later so that redis-server is on PATH"; exit 1; }

haproxy: ## install HAProxy if it is missing (apt-get or brew)
	@probe() { PATH="$$PATH:/usr/sbin" command -v haproxy >/dev/null; }; \
	if probe; then exit 0; fi; \
	if command -v apt-get >/dev/null; then $(APT_INSTALL) haproxy && { $(NO_SERVICE) haproxy || true; }; elif command -v brew >/dev/null; then brew install haproxy; fi; \
	probe || { echo "install HAProxy so that haproxy is on PATH"; exit 1; }

chromium: ## install Chromium if it is missing (apt-get or brew): make programs looks at a page with it
	@probe() { command -v chromium || command -v google-chrome; }; \
	if probe >/dev/null; then exit 0; fi; \
	echo "Chromium is missing"; \
	if command -v apt-get >/dev/null; then $(APT_INSTALL) chromium; elif command -v brew >/dev/null; then brew install --cask chromium; fi; \
	probe >/dev/null || { echo "install Chromium so that chromium is on PATH"; exit 1; }

shells: ## install zsh and fish if they are missing (apt-get or brew): make programs completes commands in them
	@if command -v zsh >/dev/null && command -v fish >/dev/null; then exit 0; fi; \
	echo "zsh or fish is missing"; \
	if command -v apt-get >/dev/null; then $(APT_INSTALL) zsh fish; elif command -v brew >/dev/null; then brew install zsh fish; fi; \
	command -v zsh >/dev/null && command -v fish >/dev/null || { echo "install zsh and fish so that they are on PATH"; exit 1; }

# Without these settings Debian's package would start a server, now and at each boot.
postgres: ## install PostgreSQL if it is missing (apt-get or brew): the example fencing starts its own server
	@probe() { ls "$$(dirname "$$(command -v initdb || echo none)")"/postgres /usr/lib/postgresql/*/bin/postgres \
		/opt/homebrew/opt/postgresql*/bin/postgres /usr/local/opt/postgresql*/bin/postgres 2>/dev/null | grep -q .; }; \
	if probe; then exit 0; fi; \
	echo "PostgreSQL is missing; the example fencing starts its own server with it"; \
	if command -v apt-get >/dev/null; then \
		$(APT_INSTALL) postgresql-common && \
		$(SUDO) sed -i 's/^#\?create_main_cluster *=.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf && \
		$(APT_INSTALL) postgresql; \
	elif command -v brew >/dev/null; then brew install postgresql@17; \
	fi; \
	probe || { echo "install PostgreSQL so that initdb and postgres are on PATH"; exit 1; }

# gcc without the C headers is not enough, and apt-get's gcc only recommends them, so the probe includes one.
c-compiler: ## install a C compiler if it is missing (apt-get): the race detector needs one
	@probe() { echo '#include <stdlib.h>' | $$($(GO) env CC) -E -x c - >/dev/null 2>&1; }; \
	if probe; then exit 0; fi; \
	echo "a C compiler or its headers are missing; the race detector needs them"; \
	if command -v apt-get >/dev/null; then $(APT_INSTALL) gcc libc6-dev; fi; \
	probe || { echo "install a C compiler, the one that 'go env CC' names (macOS: xcode-select --install)"; exit 1; }

# Homebrew keeps its JDK off the PATH.
JDK_PATH = if command -v brew >/dev/null; then PATH="$$(brew --prefix openjdk)/bin:$$PATH"; export PATH; fi

# A compiler for Java 17 is needed, not just any Java. The java next to it runs the result.
jdk: ## install a JDK and Maven if they are missing (apt-get or brew): interop needs them
	@$(JDK_PATH); probe() { javac --release 17 -version >/dev/null 2>&1; }; \
	if probe && command -v mvn >/dev/null; then exit 0; fi; \
	echo "a JDK (17 or later) or Maven is missing; the interop tests build and run the real Redisson with them"; \
	if command -v apt-get >/dev/null; then \
		probe || { $(APT_INSTALL) openjdk-17-jdk-headless; } || { $(APT_INSTALL) default-jdk-headless; }; \
		command -v mvn >/dev/null || { $(APT_INSTALL) maven; }; \
	elif command -v brew >/dev/null; then brew install openjdk maven; \
	fi; \
	probe || { echo "install a JDK, 17 or later, so that its javac and java are on PATH"; exit 1; }; \
	command -v mvn >/dev/null || { echo "install Maven so that mvn is on PATH"; exit 1; }

node: ## install Node.js and npm if they are missing (apt-get or brew): interop needs them
	@if command -v node >/dev/null && command -v npm >/dev/null; then exit 0; fi; \
	echo "Node.js or npm is missing; the interop tests run node-redisson with them"; \
	if command -v apt-get >/dev/null; then $(APT_INSTALL) nodejs npm; elif command -v brew >/dev/null; then brew install node; fi; \
	command -v node >/dev/null && command -v npm >/dev/null || { echo "install Node.js, 16 or later, so that node and npm are on PATH"; exit 1; }

golangci-lint: ## build the pinned linter if it is missing
	@if [ -x $(GOLANGCI) ]; then exit 0; fi; \
	echo "building golangci-lint $(GOLANGCI_VERSION), once: a minute or two"; \
	bin=$$(dirname $(GOLANGCI)) && GOBIN="$$(pwd)/$$bin" $(GO) install $(GOLANGCI_MODULE)@$(GOLANGCI_VERSION)
