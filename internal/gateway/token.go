package gateway

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// maxTokenBytes bounds a token. A service account's has about 1 KiB, those of other
// issuers a few.
const maxTokenBytes = 8 << 10

// tokenText is b64token of RFC 6750, section 2.1.
var tokenText = regexp.MustCompile(`^[A-Za-z0-9._~+/-]+=*$`)

// bearerToken returns the token of an authorization "Bearer <token>", which is given once. The
// error holds nothing of it.
func bearerToken(values []string) (string, error) {
	switch {
	case len(values) == 0:
		return "", errors.New("no bearer token: calls over TCP need one as authorization metadata")
	case len(values) > 1:
		return "", errors.New("more than one authorization")
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	switch {
	case !strings.EqualFold(scheme, "bearer"):
		return "", errors.New("the authorization is not a bearer token")
	case len(token) > maxTokenBytes:
		return "", fmt.Errorf("the bearer token has %d bytes, at most %d are allowed", len(token), maxTokenBytes)
	case !tokenText.MatchString(token):
		return "", errors.New("the bearer token is empty or has characters that no token has")
	}
	return token, nil
}

// maxTextBytes bounds the text of an error, which is sent in a header.
const maxTextBytes = 1024
