package cluster

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-addons/node-healer/test/harness/kubetest"
)

// TestPodsAreListedInPages: in pages of ten, and in smaller ones after a page that is large.
func TestPodsAreListedInPages(t *testing.T) {
	for name, tc := range map[string]struct{ bytes, pages int }{
		"small pods": {100, 4},
		"large pods": {maxPageBytes / podsPerPage, 11},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewAPI()
				_, claim := kubetest.Volume("pv-1")
				api.Put(kubetest.Node())
				const pods = 35
				for i := range pods {
					pod := kubetest.Pod(fmt.Sprint("app", i), claim)
					pod.Labels = map[string]string{"x": strings.Repeat("x", tc.bytes)}
					api.Put(pod)
				}
				c, end := following(t, api)
				defer end()
				if known, asked := len(c.pods.GetStore().List()), api.Count("list pods"); known != pods || asked != tc.pages {
					t.Errorf("%d pods in %d pages", known, asked)
				}
			})
		})
	}
}

// TestPageThatExpires: a list of which a page cannot be read any more begins again.
func TestPageThatExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		_, claim := kubetest.Volume("pv-1")
		api.Put(kubetest.Node())
		for i := range 2 * podsPerPage {
			api.Put(kubetest.Pod(fmt.Sprint("app", i), claim))
		}
		expired := false
		api.Continued = func() error {
			if expired {
				return nil
			}
			expired = true
			return apierrors.NewResourceExpired("too old")
		}
		c, end := following(t, api)
		defer end()
		time.Sleep(time.Minute)
		if known := len(c.pods.GetStore().List()); known != 2*podsPerPage || !expired {
			t.Errorf("%d pods", known)
		}
	})
}

// TestLargeNames: where an object names another one, the API takes a megabyte.
func TestLargeNames(t *testing.T) {
	large, is := strings.Repeat("x", 1<<20), true
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: large}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: large}}
	pod := kubetest.Pod("app", claim)
	pod.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: large, UID: "1"}, {Kind: "DaemonSet", Name: large, Controller: &is}}
	podKind.strip(pod)
	claimKind.strip(claim)
	if size := pod.Size(); size > 1<<10 || !ownedByDaemonSet(pod) {
		t.Errorf("%d bytes of a pod are kept", size)
	}
	if claim.Spec.VolumeName != "" {
		t.Error("a volume's name is kept that no volume has")
	}
}

// TestReadsOfPodsAreBounded: whoever asks, few pods are read at one time.
func TestReadsOfPodsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		c, end := following(t, api)
		defer end()
		api.Break(kubetest.ErrNoAnswer)
		for i := range 10 * maxPodReads {
			go func() {
				if _, err := get(t.Context(), c.reader, podKind, "shop", fmt.Sprint("app", i)); !isUnavailable(err) {
					t.Errorf("got %v", err)
				}
			}()
		}
		synctest.Wait()
		if under := api.Count("get pods"); under != maxPodReads {
			t.Errorf("%d are read", under)
		}
		time.Sleep(requestTimeout)
		synctest.Wait() // none waits for longer than the first ones
		if asked := api.Count("get pods"); asked != maxPodReads {
			t.Errorf("%d were asked of an API that does not answer", asked)
		}
	})
}
