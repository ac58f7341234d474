package controller

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

// TestBoundPages refuses what is too large only where the list can go on with less.
func TestBoundPages(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size, err := strconv.Atoi(r.URL.Query().Get("size"))
		must(t, err)
		_, _ = io.WriteString(w, strings.Repeat("x", size))
	}))
	defer api.Close()
	client := http.Client{Transport: BoundPages(http.DefaultTransport)}
	for name, tc := range map[string]struct {
		path    string
		size    int
		refused bool
	}{
		"a small page":       {"/api/v1/namespaces/a/pods?limit=10", maxPageBytes, false},
		"a large page":       {"/api/v1/namespaces/a/pods?limit=2", maxPageBytes + 1, true},
		"one large pod":      {"/api/v1/namespaces/a/pods?limit=1", maxPageBytes + 1, false},
		"another list":       {"/apis/x/v1/jobs?limit=500", maxPageBytes + 1, false},
		"a pod that is read": {"/api/v1/namespaces/a/pods/b?", maxPageBytes + 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := client.Get(api.URL + tc.path + "&size=" + strconv.Itoa(tc.size))
			if tc.refused {
				if !errors.Is(err, errLargePage) {
					t.Errorf("got %v", err)
				}
				return
			}
			must(t, err)
			defer resp.Body.Close()
			if got, err := io.Copy(io.Discard, resp.Body); err != nil || got != int64(tc.size) {
				t.Errorf("read %d bytes of %d, %v", got, tc.size, err)
			}
		})
	}
}
