package nodeserver

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// authorizationKey is where a token comes: "authorization: Bearer <token>".
const authorizationKey = "authorization"

// maxTokenBytes bounds a token. A service account's has about one KiB, those of
// other issuers come to a few.
const maxTokenBytes = 8 << 10

// tapToken is a tap.ServerInHandle: it turns away a call that cannot be
// authenticated, before anything is kept of it. (Seen in grpc-go 1.85: a tap
// runs on the connection's own goroutine under its lock, and what is sent with a
// call that it refused is thrown away.)
func tapToken(ctx context.Context, call *tap.Info) (context.Context, error) {
	if _, err := bearerToken(call.Header); err != nil {
		return ctx, status.Error(codes.Unauthenticated, err.Error())
	}
	return ctx, nil
}

// bearerToken gives the one token among a call's metadata (RFC 6750, section
// 2.1). The error holds nothing of it.
func bearerToken(md metadata.MD) (string, error) {
	values := md.Get(authorizationKey)
	switch {
	case len(values) == 0:
		return "", errors.New("no bearer token: calls over TCP bring one as authorization metadata")
	case len(values) > 1:
		return "", errors.New("more than one authorization")
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	switch {
	case !strings.EqualFold(scheme, "bearer"):
		return "", errors.New("the authorization is not a bearer token")
	case len(token) > maxTokenBytes:
		return "", fmt.Errorf("the bearer token has %d bytes, at most %d are allowed", len(token), maxTokenBytes)
	}
	if body := strings.TrimRight(token, "="); body == "" || strings.ContainsFunc(body, notInToken) {
		return "", errors.New("the bearer token is empty or has characters that no token has")
	}
	return token, nil
}

func notInToken(r rune) bool {
	return r >= 0x80 || !alphanumeric(byte(r)) && !strings.ContainsRune("-._~+/", r)
}
