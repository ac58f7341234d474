# Three static binaries on an empty system. Nothing is fetched when it runs.

FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS build
WORKDIR /src
# The modules change seldom: a layer of their own.
COPY go.mod go.sum ./
RUN go mod download
COPY Makefile ./
COPY cmd cmd
COPY pkg pkg
ARG VERSION=unknown
ARG TARGETOS
ARG TARGETARCH
RUN GOOS="$TARGETOS" GOARCH="$TARGETARCH" make build VERSION="$VERSION"

# Nothing else is needed: no shell, no library, no certificate, no user but root.
# And nothing has to be pinned; every tag of the usual small bases moves.
FROM scratch
ARG VERSION=unknown
LABEL org.opencontainers.image.title="node-healer" \
      org.opencontainers.image.description="Checks and heals CSI volumes on the node" \
      org.opencontainers.image.source="https://github.com/csi-addons/node-healer" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
# The server starts the worker that lies next to it. The gateway is for a pod of its
# own, which runs it as another user.
COPY --from=build /src/bin/node-healer /src/bin/node-healer-worker /src/bin/node-healer-gateway /usr/local/bin/
COPY LICENSE /licenses/LICENSE
# Root by need: the mounts of the host are entered and changed, which takes
# CAP_SYS_ADMIN, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH in the host's user
# namespace. The DaemonSet grants them; without them the server only reports.
USER 0:0
ENTRYPOINT ["/usr/local/bin/node-healer"]
