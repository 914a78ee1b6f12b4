# boxgate: `sudo make demo` demonstrates it, `sudo make test` tests it. `make help` lists all targets.

SHELL      := /bin/bash
# sudo drops /usr/local/go/bin from PATH; look there before giving up.
export PATH := $(PATH):/usr/local/go/bin:/usr/lib/go/bin:/usr/sbin:/sbin
GO         ?= go
# From Go 1.27 on this tag keeps the HTTP/2 implementation of golang.org/x/net, which some tests compare with.
# The gateway and the tests share one set of flags, so that no package is compiled twice.
export GOFLAGS := $(GOFLAGS) -tags=http2legacy -trimpath
IMAGE_DIR  ?= /var/lib/boxgate/images
PACKAGES   ?= ./...
TESTFLAGS  ?=
GATEFLAGS  ?=
# Packages tested concurrently: more than cores, because tests often wait for a slot or a box.
JOBS       ?= $(shell echo $$((3 * $$(nproc))))
# Packages that take longest, by the time on an idle machine. The gate starts them first, so that none runs alone at the end.
LONGEST    := ./e2e/attack ./e2e/lifecycle ./e2e/cli ./launcher ./e2e/fault ./firewall ./e2e/secrets ./e2e/sdk ./e2e/fleet ./e2e/fidelity
PARTS      ?=
MUTANTFLAGS ?=
MUTANTLEDGER ?= bin/mutants.tsv
FUZZTIME   ?= 10s
PEERS_DIR  ?= /var/lib/boxgate/peers
BASE       ?=
BENCHFLAGS ?=
DEMOFLAGS  ?=

# Builds the gateway as it is released (internal/release), for the benchmarks.
RELEASED_GATEWAY := CGO_ENABLED=0 $(GO) build -pgo=cmd/gateway/release.pgo -ldflags='-s -w' -o bin/released-gateway ./cmd/gateway

# Builds the gateway of the end-to-end tests once for all their packages.
TEST_GATEWAY := export CGO_ENABLED=0 GO="$(GO)" && GATEWAY_TEST_BINARY=$$(dist/test-gateway.sh) && export GATEWAY_TEST_BINARY &&

QEMU_DIR    := /var/lib/boxgate/qemu
VMM_DIR     := /var/lib/boxgate/vmm
RUNSC_DIR   := /var/lib/boxgate/gvisor
RUNSC       := gvisor.dev/gvisor/runsc@v0.0.0-20260905035102-160fafc42237
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOLANGCI    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.8.0

.PHONY: help deps build image agents docker podman cni firewalls runtime-debs promtool nameserver postgres proxies sshd runsc vmm kubernetes etcd s3 scale demo demo-fleet run release release-verify deb rpm newcomer oci arm64 quick test nightly race vet confined mutants structure visitors conformance check docs fuzz peers bench bench-compare profile microbench clean

help: ## list the targets
	@echo "While editing:           make quick                  seconds to a minute, without root"
	@echo "Before a commit:         sudo make test              the gate: every promise, the kernel, real boxes"
	@echo "One package, one test:   sudo make test PACKAGES=./e2e/attack TESTFLAGS='-run TestX -v'"
	@echo "Before a merge:          sudo make check             formatting, linters and the race detector"
	@echo "Before a release:        sudo make nightly           everything at full size, in hours; PARTS='fuzz race' picks"
	@echo
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-13s %s\n", $$1, $$2}'

deps: ## install the dependencies of the build, the demo and the tests (Debian and Ubuntu)
	@dist/deps.sh

build: ## build bin/gateway and bin/gateway-demo
	@command -v $(GO) >/dev/null || { echo "go is missing: install Go 1.26 or newer from https://go.dev/dl/ into /usr/local/go" >&2; exit 1; }
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -o bin/gateway ./cmd/gateway
	CGO_ENABLED=0 $(GO) build -o bin/gateway-demo ./cmd/gateway-demo
	@# The gateway refuses to run a demo that others may write to. Files built with sudo get the owner of the directory.
	@chmod go-w bin bin/gateway bin/gateway-demo; chown --reference=bin bin/gateway bin/gateway-demo 2>/dev/null || true

image: deps build ## build the images of boxes and the demo, and the image of the client tests, once
	@# The gateway refuses variables BOXGATE_* that are no settings, and the nightly tier sets one.
	@env -u BOXGATE_NIGHTLY bin/gateway image build debian --dir $(IMAGE_DIR)
	@env -u BOXGATE_NIGHTLY bin/gateway image build debian-min --dir $(IMAGE_DIR)
	@dist/clients.sh $(IMAGE_DIR)

agents: image ## build the image with coding agents, for their nightly tests (1.4 GB)
	@env -u BOXGATE_NIGHTLY bin/gateway image build debian-agents --dir $(IMAGE_DIR)

demo: ## the tour: gateway, test internet, a box, every promise (DEMOFLAGS=--keep: leave it open)
	@[ "$$(id -u)" -eq 0 ] || { echo "the demo makes network namespaces and containers and needs root: sudo make demo" >&2; exit 1; }
	@dist/stage.sh "1 of 4  installing what is needed" dist/deps.sh demo
	@dist/stage.sh "2 of 4  compiling" $(MAKE) --no-print-directory build
	@dist/stage.sh "3 of 4  building the image of the box" bin/gateway image build debian-min --dir $(IMAGE_DIR)
	@echo "4 of 4  the tour"; bin/gateway demo --image-dir $(IMAGE_DIR) $(DEMOFLAGS)

demo-fleet: ## the tour of a fleet: three gateways and an etcd on this machine, in a minute
	@[ "$$(id -u)" -eq 0 ] || { echo "the demo makes network namespaces and containers and needs root: sudo make demo-fleet" >&2; exit 1; }
	@dist/stage.sh "1 of 5  installing what is needed" dist/deps.sh demo-fleet
	@dist/stage.sh "2 of 5  compiling" $(MAKE) --no-print-directory build
	@dist/stage.sh "3 of 5  building etcd" $(MAKE) --no-print-directory etcd
	@dist/stage.sh "4 of 5  building the image of the boxes" bin/gateway image build debian-min --dir $(IMAGE_DIR)
	@echo "5 of 5  the tour"; bin/gateway demo --fleet --image-dir $(IMAGE_DIR)

run: deps build ## run the gateway on this machine, in the foreground
	bin/gateway serve

release: ## build binaries, Debian and RPM packages of the last commit for amd64 and arm64, with checksums, in bin/release
	@dist/release.sh bin/release binaries deb rpm

release-verify: ## build binaries and packages twice, in different environments, and compare
	@dist/release.sh bin/release verify binaries deb rpm

deb: ## build Debian packages of the last commit in bin/release
	@dist/release.sh bin/release deb

rpm: ## build RPM packages of the last commit in bin/release
	@dist/release.sh bin/release rpm

newcomer: ## try a newcomer's first minutes on fresh Debian systems, and measure them (docs/testing.md)
	@dist/deps.sh newcomer
	@dist/newcomer.sh

oci: ## build container images of the last commit, for docker load, in bin/release
	@dist/release.sh bin/release oci

arm64: ## under qemu: the tests without kernel features, the first process of boxes, and a boot with the gateway
	@dist/unpack.sh $(QEMU_DIR) usr/bin/qemu-aarch64-static qemu-user-static
	@dist/arm64.sh $(QEMU_DIR)/usr/bin/qemu-aarch64-static
	@dist/unpack.sh $(QEMU_DIR)-system usr/bin/qemu-system-aarch64 qemu-system-arm cpio apparmor
	@dist/boot-arm64.sh $(QEMU_DIR)-system

nameserver: ## unpack the name server of one test, without installing it
	@dist/unpack.sh /var/lib/boxgate/knot usr/sbin/knotd knot

sshd: ## unpack OpenSSH's server for the tests of logins, without installing it
	@dist/unpack.sh /var/lib/boxgate/openssh usr/sbin/sshd openssh-server

runtime-debs: ## download the Debian packages for the test of the container image
	@ls /var/lib/boxgate/runtime-debs/runc_*.deb >/dev/null 2>&1 || { mkdir -p /var/lib/boxgate/runtime-debs && \
	  dist/download.sh /var/lib/boxgate/runtime-debs "$$(dpkg --print-architecture)" runc libc6 libseccomp2 ca-certificates; }

promtool: ## unpack Prometheus' checker of metrics and alerts, without installing it
	@dist/unpack.sh /var/lib/boxgate/prometheus usr/bin/promtool prometheus

docker: ## unpack the Docker daemon of one test, without installing it
	@dist/docker.sh

podman: ## unpack Podman for one test, without installing it
	@dist/unpack.sh /var/lib/boxgate/podman usr/bin/podman podman conmon

cni: docker ## build cnitool, crictl and plugins of the CNI project, for the tests of `gateway cni`
	@GO="$(GO)" dist/cni.sh

runsc: ## build gVisor's runtime from the Go module proxy, for the tests of runtimes (about two minutes)
	@mkdir -p $(RUNSC_DIR)
	GOBIN=$(RUNSC_DIR) GOFLAGS=-trimpath CGO_ENABLED=0 $(GO) install -ldflags '-s -w' $(RUNSC)

vmm: ## unpack QEMU and Debian's kernel for clouds, for the test with virtual machines (amd64), without installing them
	@dist/unpack.sh $(VMM_DIR) 'boot/vmlinuz-*' qemu-system-x86 linux-image-cloud-amd64

kubernetes: ## build the API server of Kubernetes and etcd, for the tests of BoxgatePolicies (about four minutes)
	@GO="$(GO)" dist/apiserver.sh

etcd: ## build etcd alone, for the tests of fleets
	@GO="$(GO)" dist/apiserver.sh etcd

s3: ## build versitygw, an S3 server, for the tests of shared snapshots
	@GO="$(GO)" dist/s3server.sh

postgres: ## unpack the PostgreSQL server of one test where there is none, without installing it
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || dist/unpack.sh /var/cache/boxgate-postgres 'usr/lib/postgresql/*/bin/postgres' postgresql

proxies: ## unpack the upstream proxies and the load balancer of tests, without installing them
	@dist/unpack.sh /var/lib/boxgate/proxies usr/bin/tinyproxy tinyproxy-bin microsocks
	@dist/unpack.sh /var/lib/boxgate/balancers usr/sbin/haproxy haproxy

test confined race mutants: proxies cni etcd s3

firewalls: image ## make a root file system with firewalld and ufw, for the tests beside them
	@dist/firewalls.sh $(IMAGE_DIR)

visitors: ## unpack Chromium, axe-core, testssl.sh and slowhttptest for tests of public URLs and the dashboard, without installing them
	@dist/visitors.sh

# testgate runs the tests, and repeats a failed test alone (docs/testing.md). GATEFLAGS: -slow, -log FILE.
# Test runs do not vet; `make vet` and `make check` do.
quick: ## run the tests that need neither root nor the kernel
	@CGO_ENABLED=0 $(GO) run ./internal/testgate -go $(GO) $(GATEFLAGS) -- -short -vet=off -timeout 15m $(TESTFLAGS) \
	  $$($(GO) list $(PACKAGES) | grep -vE '^boxgate/(e2e(/|$$)|internal/testnet$$)')

test: image docker podman runtime-debs promtool nameserver postgres sshd visitors firewalls ## the gate: run all tests except the nightly ones
	@test -x $(RUNSC_DIR)/runsc || command -v runsc >/dev/null || echo "NOT TESTED: boxes under gVisor, as there is no runsc; 'make runsc' builds it"
	@CGO_ENABLED=0 $(GO) build -o bin/testgate ./internal/testgate
	$(TEST_GATEWAY) TEST_IMAGE_DIR=$(IMAGE_DIR) bin/testgate -go $(GO) $(GATEFLAGS) -- -vet=off -timeout 30m -p $(JOBS) $(TESTFLAGS) $(if $(filter ./...,$(PACKAGES)),$(LONGEST)) $(PACKAGES)

nightly: ## run everything at full size, in resumable parts (PARTS='fuzz race': only these)
	@dist/nightly.sh $(PARTS)

confined: image docker podman runtime-debs promtool nameserver postgres sshd visitors firewalls ## run the end-to-end tests with gateways confined like the systemd unit
	$(TEST_GATEWAY) TEST_IMAGE_DIR=$(IMAGE_DIR) GATEWAY_TEST_UNIT=$(CURDIR)/dist/boxgate.service $(GO) test -timeout 30m -count=1 ./e2e/...

scale: image ## create and delete 1,000 boxes, and run 50 launched and 500 attached ones
	$(TEST_GATEWAY) TEST_IMAGE_DIR=$(IMAGE_DIR) BOXGATE_TEST_SCALE="1000 50 500" $(GO) test -timeout 60m -count=1 -v ./e2e/lifecycle -run 'TestBoxesComeAndGoWithoutATrace|TestManyBoxes'

mutants: image docker podman runtime-debs promtool nameserver postgres sshd visitors firewalls ## remove each protection in turn, and require that its tests fail; BASE=rev: changed packages only
	CGO_ENABLED=0 TEST_IMAGE_DIR=$(IMAGE_DIR) $(GO) run ./internal/mutants -ledger $(MUTANTLEDGER) $(if $(BASE),-base $(BASE)) $(MUTANTFLAGS)

structure: ## print the lengths of each package's functions, and the longest functions
	@$(GO) run ./internal/structure

conformance: image visitors ## run the full conformance suites and print their tables (docs/conformance.md)
	$(TEST_GATEWAY) CONFORMANCE_FULL=1 TEST_IMAGE_DIR=$(IMAGE_DIR) $(GO) test -timeout 20m -count=1 -parallel 1 ./e2e/conformance ./e2e/visitors

vet: ## build every package and its tests, and vet them
	$(GO) build ./...
	$(GO) vet ./...

race: image docker podman runtime-debs promtool nameserver postgres sshd visitors firewalls ## run the tests with the race detector
	TEST_IMAGE_DIR=$(IMAGE_DIR) $(GO) test -race -timeout 60m $(TESTFLAGS) $(PACKAGES)

check: deps ## formatting, vet, linters, and the tests with the race detector
	@out=$$(gofmt -l .); test -z "$$out" || { echo "gofmt would change:"; echo "$$out"; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	$(GO) run $(GOLANGCI) run
	@$(GO) run $(GOVULNCHECK) ./... || echo "govulncheck could not be run to its end here (it needs its database from the network)"
	@$(MAKE) --no-print-directory race

docs: image build visitors ## run the demo and redraw its picture in the documentation, and take the pictures of the dashboard
	@bin/gateway demo --image-dir $(IMAGE_DIR) > bin/demo.txt || { cat bin/demo.txt; exit 1; }
	@$(GO) run ./internal/recording < bin/demo.txt > docs/pictures/demo.svg.new && mv docs/pictures/demo.svg.new docs/pictures/demo.svg
	@mkdir -p docs/pictures/dashboard
	$(TEST_GATEWAY) TEST_IMAGE_DIR=$(IMAGE_DIR) BOXGATE_PICTURES=$(CURDIR)/docs/pictures/dashboard $(GO) test -count=1 ./e2e/ui -run '^TestPicturesOfAllPages$$'

fuzz: ## run every fuzz target for FUZZTIME
	@set -e; for pkg in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "$$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 50x $$pkg; done; done

peers: ## unpack the peers of the benchmarks, without installing them
	@dist/peers.sh $(PEERS_DIR)

bench: deps peers ## measure the gateway against its peers, in 13 minutes, and write docs/benchmarks.md (BENCHFLAGS=-long: 45)
	@CGO_ENABLED=0 $(GO) build -o bin/bench ./bench
	@echo "compiling the gateway as it is released: some minutes"; $(RELEASED_GATEWAY)
	@bin/released-gateway image build debian --dir $(IMAGE_DIR)
	@bin/bench run -gateway bin/released-gateway -peers $(PEERS_DIR) -images $(IMAGE_DIR) $(BENCHFLAGS)

bench-compare: deps peers ## compare the gateway with that of another revision: make bench-compare BASE=revision
	@CGO_ENABLED=0 $(GO) build -o bin/bench ./bench
	@echo "compiling the gateway as it is released: some minutes"; $(RELEASED_GATEWAY)
	@bin/released-gateway image build debian --dir $(IMAGE_DIR)
	@bin/bench compare -gateway bin/released-gateway -base "$(BASE)" -peers $(PEERS_DIR) -images $(IMAGE_DIR) $(BENCHFLAGS)

profile: deps peers ## profile the gateway under the benchmarks, for the compiler of releases (cmd/gateway/release.pgo), in 10 minutes
	@rm -rf bin/profiled && mkdir -p bin/profiled
	@CGO_ENABLED=0 $(GO) build -o bin/bench ./bench
	@CGO_ENABLED=0 $(GO) build -o bin/profiled/gateway ./bench/profiled
	@bin/profiled/gateway image build debian --dir $(IMAGE_DIR)
	@bin/bench run -gateway bin/profiled/gateway -peers $(PEERS_DIR) -images $(IMAGE_DIR) -o bin/profiled/report.md -samples bin/profiled/samples.jsonl \
	  -rounds 4 -scenarios S1,S1b,S2,S3,S4,S6,S7 $(BENCHFLAGS)
	@$(GO) tool pprof -proto -output cmd/gateway/release.pgo bin/profiled/*.pprof

microbench: ## run the Go benchmarks of the packages
	$(GO) test -run '^$$' -bench . -benchmem -benchtime 1s ./...

clean: ## remove the build results
	rm -rf bin
