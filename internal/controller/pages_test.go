package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
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
		"large claims":       {"/api/v1/persistentvolumeclaims?limit=100", maxPageBytes + 1, true},
		"large fences":       {"/apis/csiaddons.openshift.io/v1alpha1/networkfences?limit=100", maxPageBytes + 1, true},
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

// TestListGoesOnAfterLargePages one by one, then with more, and visits each object once.
func TestListGoesOnAfterLargePages(t *testing.T) {
	var large []client.Object
	for i := range 150 {
		claim, _ := boundClaim()
		claim.Name = fmt.Sprintf("c-%03d", i)
		large = append(large, claim)
	}
	w := newWorld(t, large...)
	var limits []int64
	w.reconciler.cfg.Reader = interceptor.NewClient(w.api.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, api client.WithWatch, objects client.ObjectList, options ...client.ListOption) error {
			page := (&client.ListOptions{}).ApplyOptions(options)
			limits = append(limits, page.Limit)
			if page.Limit > 8 {
				return &url.Error{Err: errLargePage}
			}
			if err := api.List(ctx, objects); err != nil { // the fake has no pages
				return err
			}
			claims := objects.(*corev1.PersistentVolumeClaimList)
			begin, _ := strconv.Atoi(page.Continue)
			end := min(begin+int(page.Limit), len(claims.Items))
			if end < len(claims.Items) {
				claims.Continue = strconv.Itoa(end)
			}
			claims.Items = claims.Items[begin:end]
			return nil
		},
	})
	seen := map[string]bool{}
	must(t, list(t.Context(), w.reconciler, &corev1.PersistentVolumeClaimList{}, everywhere, func(claim *corev1.PersistentVolumeClaim) error {
		if seen[claim.Name] {
			t.Errorf("%s is visited again", claim.Name)
		}
		seen[claim.Name] = true
		return nil
	}))
	if len(seen) != 151 || !slices.Equal(limits[:8], []int64{100, 1, 2, 4, 8, 16, 1, 2}) {
		t.Errorf("visited %d, in pages of %v", len(seen), limits)
	}
}

// TestCachedJobsAreSmall, and have what is read of them: the API takes a megabyte of labels.
func TestCachedJobsAreSmall(t *testing.T) {
	job := aJob("job")
	job.ResourceVersion = "7"
	job.Status.Result = v1alpha1.ResultFailed
	large := job.DeepCopy()
	large.Labels = map[string]string{"x": strings.Repeat("x", 1<<20)}
	large.Annotations, large.Finalizers, large.ManagedFields = large.Labels, []string{"x"}, []metav1.ManagedFieldsEntry{{}}
	large.Status.Nodes = make([]v1alpha1.NodeStatus, maxNodes)
	got, err := StripJob(large)
	if must(t, err); !equality.Semantic.DeepEqual(got, job) {
		t.Errorf("got %+v", got)
	}
}

// TestReadsEnd although the API never answers one: others wait for the same page, sweep or search.
func TestReadsEnd(t *testing.T) {
	silent := interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
			<-ctx.Done()
			return ctx.Err()
		},
		List: func(ctx context.Context, _ client.WithWatch, _ client.ObjectList, _ ...client.ListOption) error {
			<-ctx.Done()
			return ctx.Err()
		},
	}
	for name, read := range map[string]func(context.Context, *Reconciler) error{
		"a page": func(ctx context.Context, r *Reconciler) error {
			return r.eachPod(ctx, client.ListOptions{}, func(*corev1.Pod) {})
		},
		"a sweep":  func(ctx context.Context, r *Reconciler) error { return r.sweep(ctx) },
		"a search": func(ctx context.Context, r *Reconciler) error { return r.search(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.reconciler.cfg.Reader = interceptor.NewClient(w.api.(client.WithWatch), silent)
				ctx, done := context.WithTimeout(t.Context(), time.Hour)
				defer done()
				if err := read(ctx, w.reconciler); !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
					t.Errorf("got %v, %v", err, ctx.Err())
				}
			})
		})
	}
}
