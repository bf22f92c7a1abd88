# The build targets of Perceptor. `make` lists them. `test` needs only Go, a C compiler and Java on the
# machine. Tools are built from tools/go.mod at their pinned versions.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PACKAGES ?= ./...
TIMEOUT  ?= 40m
RACE     ?= -race
FUZZTIME ?= 10s
BENCH    ?= .
ROUNDS   ?= 5

TOOL    := go tool -modfile=tools/go.mod
TESTENV := bin/testenv
SERVERS := $(TESTENV) run --
GOFILES  = git ls-files --cached --others --exclude-standard '*.go'

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: build
build: ## build the commands into bin/
	go build -o bin/ ./cmd/...

.PHONY: release
release: ## build the commands as packages and images have them, into bin/release/
	go build -trimpath -tags release -o bin/release/ ./cmd/...

RELEASE := go -C deploy run ./cmd/release

.PHONY: image
image: ## build the OCI image for this machine's processor, bin/release/perceptor-image.tar
	$(RELEASE) image

.PHONY: deb
deb: ## build the Debian package for this machine's processor into bin/release/
	$(RELEASE) deb

.PHONY: release-snapshot
release-snapshot: ## build archives, packages and checksums for all platforms as a release has them, into bin/dist/
	$(RELEASE) snapshot

.PHONY: sbom
sbom: release ## list what is in each released command as CycloneDX, bin/release/*.cdx.json
	@for program in taskd dispatcher perceptorctl; do \
	  $(TOOL) cyclonedx-gomod bin -json -version "$$(git describe --always --dirty)" -output bin/release/$$program.cdx.json bin/release/$$program; \
	done

.PHONY: test
test: $(TESTENV) ## run every test, race detector on, beside real servers
	$(SERVERS) $(MAKE) --no-print-directory --keep-going test-together test-alone

.PHONY: test-long
test-long: ## run every test at full length, with soaks and storms; takes some hours
	PERCEPTOR_TEST_LONG=1 $(MAKE) --no-print-directory test TIMEOUT=1h

.PHONY: test-secure
test-secure: ## run every test with TLS to PostgreSQL, and whole installations with TLS and logins on every link
	PERCEPTOR_TEST_SECURE=1 $(MAKE) --no-print-directory test

# Four packages run at a time, for most of them wait for most of their time. The packages
# that take longest (FIRST) start first, in this order, in which those that compute run beside those that wait.
# The packages in ALONE measure times: dispatch runs by itself. loadtest waits for half of its time, so the deployments
# and the packages in PATIENT run beside it, with what it leaves of the processors: they neither start a server nor
# look at a clock. All tests are compiled before the
# first one runs, because compiling disturbs tests that measure time. go vet is part of check, and test runs do
# not repeat it. All tests together are bound by the processor, so they trade memory for time (GOGC), their
# binaries have no tables for debuggers (-w), which take the linker as long as the rest, and the programs that
# loadtest starts have no race detector, except in test-long.
ALONE := /(dispatch|loadtest)$$
NOTHING :=
SPACE := $(NOTHING) $(NOTHING)
PATIENT = /($(subst $(SPACE),|,$(strip schedule schedule/ranges store/pack store/place store/shards/kernel store/shards/far task record record/recordset \
	forecast sizing export monitoring transfer transfer/upload transfer/migrate dispatch/fair proto/openapi \
	internal/chart internal/config internal/ctxtime internal/duration internal/guard internal/jsonfault internal/jsonsyntax internal/kafkalogin \
	internal/pages internal/payload internal/share internal/spelling \
	$(addprefix loadtest/,abuse check fairness fleet hang history idle imports midnight outbox roundtrip scenario stack storm tenants workload))))$$
FIRST := store/shards internal/mutation examples internal/timingspec internal/dev client internal/virtualtest assign cmd/perceptorctl console store/control
GOTEST = env GOGC=$${GOGC:-300} go test -vet=off -ldflags=-w -timeout $(TIMEOUT)

DEPLOYTEST = go -C deploy test ./...

# Each benchmark runs once beside them, so that none breaks unseen, but for those that take long.
BENCHMARKED = $$(grep -rl '^func Benchmark' --include=*_test.go . | xargs -n1 dirname | sort -u)
BENCHONCE = go test -vet=off -ldflags=-w -timeout $(TIMEOUT) $(RACE) -run '^$$' -bench . -benchtime 1x -skip '^Benchmark(Cut|Cycle|Engine|Far|Lines|Parquet)$$' $(BENCHMARKED) | \
	{ grep -vE '^(Benchmark|goos|goarch|pkg|cpu|PASS)' || true; }

.PHONY: compile-tests
compile-tests:
	@go list -export -test -deps $(RACE) $(PACKAGES) >/dev/null 2>&1 || true # go test reports what does not compile
	@go build -buildvcs=false -trimpath ./cmd/... >/dev/null 2>&1 || true # the programs that tests start

.PHONY: test-together
test-together: compile-tests
	all=$$(go list $(PACKAGES)); first=$$(for package in $(FIRST); do grep "/perceptor/$$package$$" <<<"$$all" || true; done); \
	  { echo "$$first"; grep -vxFf <(echo "$$first") <<<"$$all" | grep -vE '$(ALONE)|$(PATIENT)' || true; } | \
	  xargs -r $(GOTEST) $(RACE) -p 4

# Both runs of test-alone take place, whatever the first one says.
.PHONY: test-alone
test-alone: compile-tests
	failed=0; \
	go list $(PACKAGES) | { grep -E '/dispatch$$' || true; } | xargs -r $(GOTEST) $(RACE) || failed=1; \
	{ code=0; go list $(PACKAGES) | { grep -E '$(PATIENT)' || true; } | xargs -r nice -n 19 $(GOTEST) $(RACE) -p 1 || code=1; \
	  $(if $(filter ./...,$(PACKAGES)),nice -n 19 $(BENCHONCE) || code=1; nice -n 19 $(DEPLOYTEST) || code=1;) exit $$code; } & \
	go list $(PACKAGES) | { grep -E '/loadtest$$' || true; } | xargs -r $(GOTEST) $(RACE) || failed=1; \
	wait $$! || failed=1; \
	exit $$failed

.PHONY: test-deploy
test-deploy: ## run the tests of the deployments, which are a module of their own
	$(DEPLOYTEST)

.PHONY: test-short
test-short: $(TESTENV) ## run only the quick tests
	$(SERVERS) $(GOTEST) -short -p 4 $(PACKAGES)

.PHONY: check
check: fmt-check vet lint verify test-short ## run all checks that a commit must pass

.PHONY: fmt
fmt: ## format the Go files
	$(GOFILES) | xargs -r gofmt -s -w

.PHONY: fmt-check
fmt-check: ## fail when a Go file is not formatted
	@unformatted=$$($(GOFILES) | xargs -r gofmt -s -l); \
	if [ -n "$$unformatted" ]; then echo "not formatted, run make fmt:" >&2; echo "$$unformatted" >&2; exit 1; fi

.PHONY: vet
vet: ## run go vet
	go vet $(PACKAGES)

.PHONY: lint
lint: ## run golangci-lint on the code, buf on the contract and on its changes since the baseline
	$(TOOL) golangci-lint run $(PACKAGES)
	./proto/generate.sh --lint
	./proto/generate.sh --breaking

.PHONY: vuln
vuln: ## look for known vulnerabilities that the code reaches (asks the Go vulnerability database)
	@code=0; out=$$($(TOOL) govulncheck $(PACKAGES) 2>&1) || code=$$?; \
	if grep -q 'govulncheck: fetching vulnerabilities' <<<"$$out"; then \
	  echo "vuln: the Go vulnerability database is out of reach, nothing was checked" >&2; exit 1; \
	fi; echo "$$out"; exit $$code

.PHONY: proto
proto: ## generate code from the contract
	./proto/generate.sh

.PHONY: verify
verify: ## fail when generated code, go.mod or go.sum is not up to date
	./proto/generate.sh --verify
	go mod verify
	go mod tidy -diff
	go -C deploy mod tidy -diff

.PHONY: bench
bench: $(TESTENV) ## run the benchmarks that match BENCH (default all)
	$(SERVERS) go test -run '^$$' -bench '$(BENCH)' -benchmem -timeout 1h $(PACKAGES)

.PHONY: bench-compare
bench-compare: ## run a burst of the same jobs on other schedulers and on Perceptor, in turns, ROUNDS times (default 5)
	go run ./loadtest compare --burst --rounds $(ROUNDS)

# The generator has a module of its own, so that its many requirements change no other tool. Compiling it takes two
# minutes of processor time, so the site is no part of test; internal/pages checks the links of the pages there.
.PHONY: site
site: ## build the site of the documentation into bin/site/, and check its links
	go tool -modfile=tools/site/go.mod hugo --source site --destination ../bin/site --cleanDestinationDir --noBuildLock --panicOnWarning --quiet
	go run ./internal/pages/checksite bin/site

.PHONY: screenshots
screenshots: $(TESTENV) ## take the pictures of the console in docs/console with Chromium
	mkdir -p docs/console
	$(SERVERS) go test -count=1 -run 'TestEveryPageAndActionInARealBrowser' ./console -args -screenshots "$(CURDIR)/docs/console"

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (default 10s)
	@for package in $$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' $(PACKAGES)); do \
	  dir=$$(go list -f '{{.Dir}}' $$package); \
	  for target in $$({ grep -hoE '^func Fuzz\w+' "$$dir"/*_test.go || true; } | sed 's/func //'); do \
	    echo "== $$package $$target"; \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package; \
	  done; \
	done

.PHONY: $(TESTENV)
$(TESTENV):
	@go build -o $@ ./internal/testenv/cmd/testenv

.PHONY: clean
clean: ## remove built files
	rm -rf bin third_party
