package kube

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// feeding runs a feed of volumes in a bubble.
func feeding(t *testing.T, api *clusterAPI) (f *feed, end func()) {
	t.Helper()
	f, err := newFeed(api.client(t).persistentVolumes())
	if err != nil {
		t.Fatal(err)
	}
	return f, runs(t, f.run)
}

// has fails the test unless the feed has these volumes.
func has(t *testing.T, f *feed, names ...string) {
	t.Helper()
	if got := len(f.informer.GetIndexer().List()); got != len(names) {
		t.Errorf("it has %d objects, want %v", got, names)
	}
	for _, name := range names {
		if _, found := one[*volume](f, name); !found {
			t.Errorf("it lacks %s", name)
		}
	}
}

// troubled fails the test unless the feed's trouble has a text; empty: none.
func troubled(t *testing.T, f *feed, text string) {
	t.Helper()
	err := f.trouble(staleness)
	if (err == nil) != (text == "") || err != nil && !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want %q", err, text)
	}
}

// muchLater lets time pass until whoever waits to try again has tried, however
// long it has tried in vain.
func muchLater() {
	time.Sleep(2 * time.Minute)
	synctest.Wait()
}

// inAllWays runs a test with an API that streams lists and with an older one.
func inAllWays(t *testing.T, test func(t *testing.T, api *clusterAPI)) {
	t.Helper()
	for name, noStreams := range map[string]bool{"streamed": false, "listed": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newClusterAPI()
				api.noStreams = noStreams
				test(t, api)
			})
		})
	}
}

func volumeNamed(name string) *corev1.PersistentVolume {
	pv, _ := aVolume(name)
	return pv
}

func TestFeedFollows(t *testing.T) {
	inAllWays(t, func(t *testing.T, api *clusterAPI) {
		api.put(volumeNamed("a"))
		f, end := feeding(t, api)
		defer end()
		has(t, f, "a")
		troubled(t, f, "")
		select {
		case <-f.failed:
			t.Error("an API that is merely old counts as a failure")
		default:
		}

		api.put(volumeNamed("b"))
		api.remove(volumeNamed("a"))
		synctest.Wait()
		has(t, f, "b")
		muchLater()
		troubled(t, f, "")
		if lists := api.count("list persistentvolumes"); lists > 1 {
			t.Errorf("%d lists where one is enough", lists)
		}
	})
}

func TestFeedWhoseWatchEnds(t *testing.T) {
	inAllWays(t, func(t *testing.T, api *clusterAPI) {
		api.put(volumeNamed("a"))
		f, end := feeding(t, api)
		defer end()
		api.put(volumeNamed("b"))
		time.Sleep(time.Hour)

		api.breaks(refused)
		synctest.Wait()
		troubled(t, f, "") // what was true a moment ago counts
		time.Sleep(staleness)
		troubled(t, f, "")
		time.Sleep(time.Second)
		troubled(t, f, "connection refused")
		has(t, f, "a", "b")

		time.Sleep(time.Hour)
		api.breaks(nil)
		api.remove(volumeNamed("a"))
		muchLater()
		troubled(t, f, "")
		has(t, f, "b")
	})
}

// TestFeedWhoseVersionIsForgotten has to list anew: in the answer to a watch, or
// as the first word of one.
// TestFeedAfterManyOutages is not punished for the outages of before: it is back
// soon after the API is.
func TestFeedAfterManyOutages(t *testing.T) {
	inAllWays(t, func(t *testing.T, api *clusterAPI) {
		api.put(volumeNamed("a"))
		f, end := feeding(t, api)
		defer end()
		for range 20 {
			api.breaks(refused)
			time.Sleep(3 * time.Second)
			api.breaks(nil)
		}
		time.Sleep(2 * unreachedPause)
		synctest.Wait()
		if f.stands == nil {
			t.Errorf("no watch stands: %v", f.err)
		}
		has(t, f, "a")
	})
}

func TestFeedWhoseVersionIsForgotten(t *testing.T) {
	inAllWays(t, func(t *testing.T, api *clusterAPI) {
		api.put(volumeNamed("a"), volumeNamed("b"))
		f, end := feeding(t, api)
		defer end()
		time.Sleep(time.Hour)
		api.breaks(refused)
		api.remove(volumeNamed("a"))
		api.put(volumeNamed("c"))
		api.forget()
		time.Sleep(time.Hour)
		troubled(t, f, "connection refused")

		api.breaks(nil)
		muchLater()
		troubled(t, f, "")
		has(t, f, "b", "c")
	})
}

func TestFeedThatIsDenied(t *testing.T) {
	inAllWays(t, func(t *testing.T, api *clusterAPI) {
		deny := func(only string) func(verb, resource string) error {
			return func(verb, resource string) error {
				if only != "" && verb != only {
					return nil
				}
				return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no "+verb))
			}
		}
		api.put(volumeNamed("a"))
		api.fault = deny("")
		f, end := feeding(t, api)
		defer end()
		<-f.failed
		troubled(t, f, "no list")
		// A list alone is old at once.
		api.set(func(a *clusterAPI) { a.fault = deny("watch") })
		muchLater()
		has(t, f, "a")
		troubled(t, f, "no watch")
		api.set(func(a *clusterAPI) { a.fault = nil })
		muchLater()
		troubled(t, f, "")
		// A watch that stands goes on, whoever is denied another one.
		api.set(func(a *clusterAPI) { a.fault = deny("watch") })
		api.put(volumeNamed("b"))
		muchLater()
		has(t, f, "a", "b")
		troubled(t, f, "")
	})
}

// TestFeedBehindAProxyThatHangsUp is told that each watch begins, and gets
// nothing by any.
func TestFeedBehindAProxyThatHangsUp(t *testing.T) {
	inAllWays(t, func(t *testing.T, api *clusterAPI) {
		api.put(volumeNamed("a"))
		f, end := feeding(t, api)
		defer end()
		time.Sleep(time.Hour)
		api.set(func(a *clusterAPI) { a.hasty = true; a.hangUp() })
		time.Sleep(time.Hour)
		if err := f.trouble(staleness); err == nil {
			t.Error("watches that bring nothing count")
		}
	})
}

// TestWatchOnAHalfDeadConnection is given up when nothing came for longer than
// the API is ever silent, and what was missed is learned by the next one.
func TestWatchOnAHalfDeadConnection(t *testing.T) {
	inAllWays(t, func(t *testing.T, api *clusterAPI) {
		f, end := feeding(t, api)
		defer end()
		time.Sleep(time.Hour)
		troubled(t, f, "")
		api.halfDie()
		api.put(volumeNamed("a"))
		time.Sleep(muteWatch / 2)
		has(t, f)
		time.Sleep(muteWatch)
		has(t, f, "a")
		troubled(t, f, "")
	})
}

// TestWatchThatWasGivenUp ends when another one stands already.
func TestWatchThatWasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newClusterAPI()
		f, end := feeding(t, api)
		defer end()
		old, next := watch.NewFake(), watch.NewFake()
		f.follow(old, false, func() {})
		f.follow(next, false, func() {})
		old.Stop()
		synctest.Wait()
		time.Sleep(time.Minute)
		troubled(t, f, "")
		next.Stop()
		synctest.Wait()
		time.Sleep(time.Minute)
		troubled(t, f, "has not come back")
	})
}

// TestFeedEnds at once, whatever the API does to it.
func TestFeedEnds(t *testing.T) {
	for name, fault := range map[string]error{
		"it works": nil, "nobody listens": refused, "nobody answers": errSilent,
		"too much": apierrors.NewTooManyRequests("later", 0), "broken": apierrors.NewInternalError(errors.New("broken")),
		"not a Kubernetes": apierrors.NewGenericServerResponse(http.StatusBadGateway, "", schema.GroupResource{}, "", "", 0, true),
	} {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, from the start: %v", name, first), func(t *testing.T) {
				inAllWays(t, func(t *testing.T, api *clusterAPI) {
					if first && fault != nil {
						api.breaks(fault)
					}
					_, end := feeding(t, api)
					time.Sleep(time.Hour)
					if fault != nil {
						api.breaks(fault)
					}
					time.Sleep(time.Hour)
					end()
				})
			})
		}
	}
}

func TestFeedOfManyObjects(t *testing.T) {
	inAllWays(t, func(t *testing.T, api *clusterAPI) {
		const many = 5_000
		for i := range many {
			pv := volumeNamed(fmt.Sprintf("pv-%d", i))
			pv.Spec.CSI.VolumeHandle = fmt.Sprintf("vol-%d", i)
			api.put(pv)
		}
		f, end := feeding(t, api)
		defer end()
		muchLater()
		if got := len(f.informer.GetIndexer().List()); got != many {
			t.Errorf("%d of %d objects", got, many)
		}
		if lists := api.count("list persistentvolumes"); api.noStreams && lists < many/500 {
			t.Errorf("they came in %d pages", lists)
		}
		if got := indexed[*volume](f, byHandle, "vol-4711"); len(got) != 1 || got[0].name != "pv-4711" {
			t.Errorf("got %v", got)
		}
	})
}

// TestWhatAFeedKeeps is little, and all that is asked for.
func TestWhatAFeedKeeps(t *testing.T) {
	inAllWays(t, func(t *testing.T, api *clusterAPI) {
		pv := volumeNamed("a")
		pv.Labels = map[string]string{"app": "a"}
		pv.Annotations = map[string]string{"provisioner": "b", modeAnnotation: "check"}
		pv.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "c"}}
		pv.Spec.CSI.VolumeAttributes = map[string]string{"secretish": "d"}
		pv.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Name: "e"}
		pv.Spec.NodeAffinity, pv.Spec.StorageClassName = &corev1.VolumeNodeAffinity{}, "fast"
		api.put(pv)
		f, end := feeding(t, api)
		defer end()
		got, _ := one[*volume](f, "a")
		mode := "check"
		want := volume{
			named:  named{name: "a", uid: "uid-of-a", mode: &mode},
			driver: driverName, handle: handle, class: "fast",
			claim: "shop/claim-of-a", claimUID: "uid-of-claim-a",
		}
		if got == nil || got.mode == nil || *got.mode != mode {
			t.Fatalf("got %+v", got)
		}
		want.mode = got.mode
		if *got != want {
			t.Errorf("got  %+v\nwant %+v", *got, want)
		}
	})
}
