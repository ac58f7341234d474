# Static binaries in an empty image.

FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS build
WORKDIR /src
# Modules rarely change: a layer of their own.
COPY go.mod go.sum ./
RUN go mod download
COPY Makefile ./
COPY cmd cmd
COPY pkg pkg
COPY internal internal
# healerctl explains what they say.
COPY docs docs
ARG VERSION=unknown
ARG TARGETOS
ARG TARGETARCH
RUN GOOS="$TARGETOS" GOARCH="$TARGETARCH" make build VERSION="$VERSION"

# No shell, library or user is needed, and nothing has to be pinned. The certificates are
# for programs of providers that call a backend over TLS; Go and OpenSSL look there.
FROM scratch
ARG VERSION=unknown
LABEL org.opencontainers.image.title="node-healer" \
      org.opencontainers.image.description="Checks and heals CSI volumes on the node" \
      org.opencontainers.image.source="https://github.com/csi-addons/node-healer" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
# The server starts the worker beside it. Gateway and controller run in pods of their own,
# as other users. healerctl is for kubectl exec.
COPY --from=build /src/bin/node-healer /src/bin/node-healer-worker /src/bin/node-healer-gateway /src/bin/node-healer-controller /src/bin/healerctl /usr/local/bin/
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY LICENSE /licenses/LICENSE
# Root, because it enters and changes the mounts of the host, which takes
# CAP_SYS_ADMIN, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH in the host's user
# namespace. The DaemonSet grants them; without them the server only reports.
USER 0:0
# So that kubectl exec starts healerctl by its name, whatever default the runtime has.
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENTRYPOINT ["/usr/local/bin/node-healer"]
