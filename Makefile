comma   := ,
space   := $(subst ,, )
MODULE  := github.com/csi-addons/node-healer
# A tarball, or a checkout of another user, has no version to describe.
VERSION ?= $(shell git describe --always --dirty 2>/dev/null || echo unknown)
IMAGE   ?= ghcr.io/csi-addons/node-healer:$(VERSION)
# Where the programs go.
BIN     ?= bin
# All times in the image: the commit's (https://reproducible-builds.org/specs/source-date-epoch/).
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
PLATFORMS := linux/amd64 linux/arm64
# The lines of `bench` to measure.
BENCH   ?= all
# The kernels that `kernels` boots, and the tests that it runs there (empty: what features.go lists).
KERNEL  ?= 6.1 6.12
RUN     ?=

GO      ?= go
TOOLS   := bin/tools
# The Kubernetes of the tests; test/harness/cluster starts it.
KUBERNETES := $(addprefix bin/controlplane/,etcd kube-apiserver kube-controller-manager kube-scheduler kubectl kubelet)
# The same of the oldest release that is supported.
OLDEST  := bin/kubernetes-1.32/kube-apiserver
# The Prometheus of test/monitoring.
PROMETHEUS := bin/prometheus/prometheus
# The S3 server of the tests; test/harness/s3.go starts it.
S3      := bin/s3/versitygw
PROTO   := pkg/api/healerpb/healer.proto
ADMIN   := pkg/api/adminpb/admin.proto
STUBS   := $(foreach p,$(PROTO:.proto=) $(ADMIN:.proto=),$(p).pb.go $(p)_grpc.pb.go)
KINDS   := pkg/api/v1alpha1
CRD     := deploy/controller/node-healer.csi-addons.io_volumehealjobs.yaml
CSI     := github.com/container-storage-interface/spec

# Programs, tools, vet and linter are built alike, so that what several need is compiled
# once: from nothing that is half of the work. -trimpath: nor does it matter where.
# -dwarf=false: no debugger runs here, and the compiler takes a fifth less without.
ALIKE := -trimpath -gcflags=all=-dwarf=false
export CGO_ENABLED := 0
export GOFLAGS := $(filter-out $(ALIKE),$(GOFLAGS)) $(ALIKE)

# -buildvcs=false: the version comes from VERSION; git may refuse to answer.
# grpcnotrace: gRPC's tracing page imports html/template, which calls methods by
# name, so the linker would keep every method of every type: 6 MB.
BUILD   := $(GO) build -tags grpcnotrace -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)'
# -count=1: these tests ask the kernel; a cached result proves nothing. -vet=off: `vet` and
# `lint` look at all packages of this module.
TEST    := $(GO) test -count=1 -vet=off
# The race detector needs cgo.
RACE    := CGO_ENABLED=1 $(TEST) -race

.DEFAULT_GOAL := help
# The steps of `test` build on each other, and each uses all CPUs by itself.
.NOTPARALLEL:

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## install what the tests need (apt-get, only what is missing)
	@.ci/deps

.PHONY: deps-kernels
deps-kernels: ## install what the kernels' virtual machines need in addition
	@.ci/deps kernels

.PHONY: build
build: ## build bin/node-healer, its worker, gateway and controller, and bin/healerctl
	$(BUILD) -o $(BIN)/node-healer ./cmd/node-healer
	$(BUILD) -o $(BIN)/node-healer-worker ./cmd/node-healer-worker
	$(BUILD) -o $(BIN)/node-healer-gateway ./cmd/node-healer-gateway
	$(BUILD) -o $(BIN)/node-healer-controller ./cmd/node-healer-controller
	$(BUILD) -o $(BIN)/healerctl ./cmd/healerctl

.PHONY: platforms
platforms:
	for p in $(PLATFORMS); do GOOS=$${p%/*} GOARCH=$${p#*/} $(MAKE) build BIN=bin/image/$$p || exit 1; done

# write_image FLAG: on any machine the same bytes from the same commit and Go.
write_image = cd deploy/image && $(GO) run . $(1) -programs $(abspath bin/image) -licence $(abspath LICENSE) \
	-platforms $(subst $(space),$(comma),$(PLATFORMS)) -name $(IMAGE) -version $(VERSION) -created $(SOURCE_DATE_EPOCH)

.PHONY: image
image: platforms ## all programs in one image for amd64 and arm64, and an SBOM of each, in bin/image
	$(call write_image,-out $(abspath bin/image))

.PHONY: release
release: platforms ## VERSION=v0.1.0: image, SBOMs, programs, chart, notes and checksums, in bin/release
	$(call write_image,-release $(abspath bin/release))

.PHONY: image-test
image-test: deps image ## the bytes of image and release, the SBOM, and that the programs start (root)
	cd deploy/image && $(GO) test -count=1 ./...

.PHONY: demo
demo: demo-programs ## three volumes go bad, one under a running container, and are healed (root)
	GRPCURL=$(abspath $(TOOLS)/grpcurl) test/demo/run.sh

.PHONY: demo-all
demo-all: demo-programs ## every scene: what is healed, what is refused, what errors look like (root)
	GRPCURL=$(abspath $(TOOLS)/grpcurl) test/demo/run.sh --all

.PHONY: demo-programs
demo-programs: $(TOOLS)/grpcurl
	@.ci/deps demo
	$(BUILD) -o bin/ ./cmd/node-healer ./cmd/node-healer-worker
	$(BUILD) -o bin/demo-fuse ./test/demo/fuse

# --keep-going: one run reports every failure, not only the first.
.PHONY: test
test: ## build everything and run all tests, as CI does (root; CI=true turns skips into failures)
	@.ci/disk
	$(MAKE) --keep-going deps deps-kernels build check-generate side-by-side lint vet

# For a night or a release.
.PHONY: test-full
test-full: ## the same with storms, soak and floods, all kinds at every instant, -race in the servers, the kernels' long form, the oldest Kubernetes (hours, root)
	TEST_FULL=1 TEST_RACE=1 TEST_TIMEOUT=4h $(MAKE) --keep-going test kernels oldest

.PHONY: unit
# -p 4: half of the time these wait.
unit: ## tests of the packages, commands, manifests and pages
	$(RACE) -p 4 -timeout 30m ./pkg/... ./internal/... ./cmd/... ./deploy/... ./docs/...
	$(RACE) -run 'TestPage|TestFeatures|TestTable' ./test/kernels
	$(RACE) ./test/mutate
	cd test/vendor && $(GO) test ./...

.PHONY: integration
integration: deps build ## tests on the real kernel (root)
	@.ci/integration

.PHONY: race
race: deps build ## the same, with server and gateway built with the race detector (root)
	@TEST_RACE=1 .ci/integration

# All tests: each waits half of the time.
.PHONY: side-by-side
side-by-side: deps deps-kernels build
	@.ci/integration all

# On what those leave of the processors. Linter and compiler remember.
.PHONY: ahead
ahead: lint vet
	for t in test/e2e test/chart "test/monitoring -tags remove_all_sd"; do \
		(set -- $$t; cd $$1 && shift && $(GO) list -export -test -deps "$$@" ./... >/dev/null) || exit 1; \
	done

.PHONY: soak
soak: deps build ## 1,000 volumes with faults that come and go, without a call, for SOAK (5m) (root)
	TEST_FULL=1 NODE_HEALER_SOAK=$(or $(SOAK),5m) $(TEST) -v -timeout 2h -run TestSoak ./test/integration

.PHONY: mutate
mutate: deps build ## break lines that keep data safe, one at a time: each turns a test red (root); RUN=locks: only these
	$(GO) run ./test/mutate -run '$(RUN)'

.PHONY: e2e
e2e: deps build kubernetes s3 ## a real node with kubelet: a pod gets its volume back without a restart (root)
	$(TEST) -timeout 30m ./test/e2e/...

# What needs an API: node, chart and install commands, integration tests.
.PHONY: oldest
oldest: export TEST_KUBERNETES := kubernetes-1.32
oldest: deps build $(OLDEST) $(S3) ## the tests that need a Kubernetes, on the oldest that is supported (root)
	$(TEST) -timeout 15m ./test/e2e/...
	cd test/chart && $(GO) test -count=1 ./...
	$(TEST) -timeout 60m ./test/integration \
		-run "^($$(sed -n 's/^func \(Test[A-Za-z0-9]*\)(.*/\1/p' test/integration/cluster_*_test.go | paste -sd '|'))\$$"

# Without the race detector and with the flags of the program, so that most of it is
# compiled once.
.PHONY: monitoring
monitoring: $(PROMETHEUS) ## alert rules and dashboard, judged by a real Prometheus
	cd test/monitoring && $(GO) test -count=1 -tags remove_all_sd ./...

# As above, without the race detector: Helm is large.
.PHONY: chart
chart: kubernetes ## Helm chart and install commands, in a real API (root)
	cd test/chart && $(GO) test -count=1 ./...

# These two build and wait, so they run without the race detector.
.PHONY: kernels
kernels: deps-kernels ## every heal and condition in all its ways on older kernels, in QEMU; writes docs/kernels.md (root); KERNEL=6.12 RUN=TestX: only these
	$(TEST) -v -timeout 1h ./test/kernels -args -kernels '$(KERNEL)' $(if $(RUN),-scenes '$(RUN)',-write)

.PHONY: kernels-short
kernels-short: deps-kernels ## every heal and condition once on an older kernel, in QEMU (root)
	$(TEST) -v -timeout 40m ./test/kernels -args -short

.PHONY: kubernetes
kubernetes: $(KUBERNETES) ## build the tests' Kubernetes and its etcd (6 minutes, once)

.PHONY: prometheus
prometheus: $(PROMETHEUS) ## build the tests' Prometheus (2 minutes, once)

.PHONY: s3
s3: $(S3) ## build the tests' S3 server (1 minute, once)

.PHONY: bench
bench: deps kubernetes ## measure the ratios of docs/performance.md (root); BENCH="ext4 sweep": only these
	@mkdir -p bin
	$(GO) test -c -o bin/bench ./test/bench
	BENCH='$(BENCH)' bin/bench -test.timeout 40m

# Tests build with the tag `faults`: what differs with it is checked too.
FAULTS := $(addsuffix /...,./internal/setup ./internal/ops)

.PHONY: vet
vet: ## go vet
	$(GO) vet ./...
	$(GO) vet -tags faults $(FAULTS)

.PHONY: lint
lint: $(TOOLS)/golangci-lint ## golangci-lint, with the import fences, the budget of lines, and what pkg/ shows
	.ci/check-budget
	$(TEST) ./pkg
	$(GO) mod tidy -diff
	$(TOOLS)/golangci-lint run
	$(TOOLS)/golangci-lint run --build-tags faults $(FAULTS)

# proto_to DIR: write the stubs beneath DIR.
# The CSI file is taken from the Go module that go.mod pins.
define proto_to
$(GO) mod download $(CSI)
for p in $(PROTO) $(ADMIN); do $(TOOLS)/proto -out $(1) -param module=$(MODULE) \
	-plugin $(TOOLS)/protoc-gen-go -plugin $(TOOLS)/protoc-gen-go-grpc \
	-import csi.proto="$$($(GO) list -m -f '{{.Dir}}' $(CSI))/csi.proto" \
	$(MODULE)/$$p=$$p || exit 1; done
endef

# kinds_to DIR: write the copy functions and the definition of our kinds beneath DIR.
define kinds_to
$(TOOLS)/controller-gen object crd paths=./$(KINDS) \
	output:object:dir=$(1)/$(KINDS) output:crd:dir=$(1)/$(dir $(CRD))
endef

.PHONY: generate
generate: $(TOOLS)/proto $(TOOLS)/controller-gen ## write the gRPC stubs, and the definition of VolumeHealJob
	$(call proto_to,.)
	$(call kinds_to,.)

.PHONY: check-generate
check-generate: $(TOOLS)/proto $(TOOLS)/controller-gen ## fail if what is generated is stale
	@rm -rf bin/.check-generate
	$(call proto_to,bin/.check-generate)
	$(call kinds_to,bin/.check-generate)
	@for f in $(STUBS) $(KINDS)/zz_generated.deepcopy.go $(CRD); do \
		diff -u $$f bin/.check-generate/$$f || { echo "$$f is stale: run make generate" >&2; exit 1; }; \
	done

.PHONY: clean
clean: ## remove what was built
	rm -rf bin

# A tool is built once, and again when its pins change. touch is needed because
# go install does not write a binary that is up to date.
# Tools run on this machine, whatever GOOS and GOARCH the build is for.
install_tool = cd $(1) && GOOS= GOARCH= GOBIN=$(abspath $(TOOLS)) $(GO) install -buildvcs=false

$(TOOLS)/golangci-lint $(TOOLS)/grpcurl $(TOOLS)/controller-gen: $(TOOLS)/%: .ci/tools/%/go.mod .ci/tools/%/go.sum
	$(call install_tool,.ci/tools/$*) tool
	@touch $@

# Also builds protoc-gen-go and protoc-gen-go-grpc.
$(TOOLS)/proto: .ci/tools/proto/go.mod .ci/tools/proto/go.sum .ci/tools/proto/main.go
	$(call install_tool,.ci/tools/proto) . tool
	@touch $@

# In one build, which links them side by side: half the time of one after the other.
# etcd's package is called v3, and its program server.
$(KUBERNETES) &: test/controlplane/go.mod test/controlplane/go.sum
	.ci/once bin/controlplane $^ -- sh -c "cd test/controlplane && GOOS= GOARCH= $(GO) build -buildvcs=false -ldflags '-s -w' -o $(abspath bin/controlplane)/ tool"
	@mv bin/controlplane/server bin/controlplane/etcd
	@touch $(KUBERNETES)

$(OLDEST): test/controlplane-1.32/go.mod test/controlplane-1.32/go.sum
	.ci/once bin/kubernetes-1.32 $^ -- sh -c "cd test/controlplane-1.32 && GOOS= GOARCH= $(GO) build -buildvcs=false -ldflags '-s -w' -o $(abspath bin/kubernetes-1.32)/ tool"
	@mv bin/kubernetes-1.32/server bin/kubernetes-1.32/etcd
	@touch $@

# remove_all_sd: without its service discoveries, most of which are clients of clouds.
$(PROMETHEUS): test/monitoring/go.mod test/monitoring/go.sum
	.ci/once bin/prometheus $^ -- sh -c "cd test/monitoring && GOOS= GOARCH= $(GO) build -buildvcs=false -tags remove_all_sd -ldflags '-s -w' -o $(abspath bin/prometheus)/ tool"
	@touch $@

$(S3): test/s3/go.mod test/s3/go.sum
	.ci/once bin/s3 $^ -- sh -c "cd test/s3 && GOOS= GOARCH= $(GO) build -buildvcs=false -ldflags '-s -w' -o $(abspath bin/s3)/ tool"
	@touch $@
