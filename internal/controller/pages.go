package controller

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"path"
	"strconv"
)

const (
	// podsPerPage bounds one answer of the API as it is sent: a pod may have 1.5 MB.
	podsPerPage = 10
	// maxPageBytes bounds a page that is decoded, in which a pod may take 100 times its
	// size (with as many volumes as the API takes). After one that is larger the list goes
	// on with one pod, and with twice as many in each page after that.
	maxPageBytes = 1 << 20
)

// errLargePage says that a page of several pods has more bytes than maxPageBytes.
var errLargePage = errors.New("the page of pods is too large to be decoded")

// BoundPages makes a client fail with errLargePage before it decodes a large page of pods.
func BoundPages(next http.RoundTripper) http.RoundTripper { return boundedPages{next} }

type boundedPages struct{ next http.RoundTripper }

func (b boundedPages) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(r)
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil || limit < 2 || path.Base(r.URL.Path) != "pods" {
		return resp, err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxPageBytes+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxPageBytes {
		return nil, errLargePage
	}
	resp.Body = io.NopCloser(bytes.NewReader(raw))
	return resp, nil
}
