package kube

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestHeart(t *testing.T) {
	for name, tc := range map[string]struct {
		then  error
		after time.Duration
		want  string
	}{
		"all is well":                 {after: time.Hour},
		"nobody answers, for a while": {then: errSilent, after: staleness / 2},
		"nobody answers":              {then: errSilent, after: time.Minute, want: "has not answered for"},
		"nobody listens, for a while": {then: refused, after: staleness / 2},
		"nobody listens":              {then: refused, after: time.Minute, want: "connection refused"},
		"it answers with an error":    {then: apierrors.NewInternalError(errors.New("no etcd")), after: time.Minute, want: "no etcd"},
		"denied":                      {then: apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, nodeName, errors.New("no rule")), after: time.Minute, want: "no rule"},
		// The API did answer: there is nothing here that it would want.
		"the node is gone": {then: apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, nodeName), after: staleness / 2, want: "no node of this name"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newClusterAPI()
				api.put(aNode())
				c, end := following(t, api)
				defer end()
				time.Sleep(time.Hour)
				if err := c.heart.trouble(staleness); err != nil {
					t.Fatal(err)
				}
				api.set(func(a *clusterAPI) { a.fault = func(string, string) error { return tc.then } })
				time.Sleep(tc.after)
				err := c.heart.trouble(staleness)
				if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v, want %q", err, tc.want)
				}
				api.set(func(a *clusterAPI) { a.fault = nil })
				time.Sleep(staleness)
				synctest.Wait()
				if err := c.heart.trouble(staleness); err != nil {
					t.Errorf("it answers again: %v", err)
				}
			})
		})
	}
}

// TestHeartCountsFromTheQuestion and not from its answer, which may be as old.
func TestHeartCountsFromTheQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heart
		if err := h.trouble(staleness); err == nil {
			t.Error("nobody was asked yet")
		}
		asked := time.Now()
		time.Sleep(20 * time.Second)
		h.note(asked, nil)
		if err := h.trouble(staleness); err != nil {
			t.Error(err)
		}
		time.Sleep(20 * time.Second)
		if err := h.trouble(staleness); err == nil {
			t.Error("an answer of 40 seconds ago counts")
		}
		h.note(asked, errors.New("broken"))
		if err := h.trouble(staleness); err == nil || !strings.Contains(err.Error(), "broken") {
			t.Errorf("got %v", err)
		}
	})
}
