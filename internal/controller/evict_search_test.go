package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
	"github.com/csi-addons/node-healer/pkg/api/volumehealth"
)

// shutDown is what a node says of a claim whose volume's filesystem shut itself down.
const shutDown = `{"state":"unhealthy","node":"node-1","evictable":["FilesystemShutdown"]}`

// saysSick has a node say something of the claim.
func (w *evictWorld) saysSick(value string) {
	w.t.Helper()
	w.update("ns", "claim", &corev1.PersistentVolumeClaim{}, func(o client.Object) {
		o.SetAnnotations(map[string]string{volumehealth.Annotation + "node-uid": value})
	})
}

// searches searches, and returns the names of the jobs in a namespace that were made by itself.
func (w *evictWorld) searches(namespace string) (made []string) {
	w.t.Helper()
	must(w.t, w.reconciler.search(w.ctx))
	jobs := &v1alpha1.VolumeHealJobList{}
	must(w.t, w.api.List(w.ctx, jobs, client.InNamespace(namespace)))
	for _, job := range jobs.Items {
		if job.Name != "job" {
			made = append(made, job.Name)
		}
	}
	return made
}

// TestEvictsByItself what a node says, and does it once.
func TestEvictsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		w.remove(w.job("job"))
		w.saysSick(shutDown)
		for range 2 {
			if made := w.searches("ns"); !slices.Equal(made, []string{"evict-claim-uid"}) {
				t.Fatalf("made %v", made)
			}
		}
		job := w.job("evict-claim-uid")
		if job.Spec.Mode != v1alpha1.ModeEvict || job.Spec.DryRun || job.Spec.Target.PersistentVolumeClaim != "claim" || *job.Spec.TTLSecondsAfterFinished != automaticTTL {
			t.Errorf("made %+v", job.Spec)
		}
		w.name = job.Name
		w.kubelet = func() { w.kubeletEnds(); w.scheduler() }
		says(t, w.runs(), v1alpha1.ResultSucceeded, ReasonHealthy, "")
		w.clean()
		if !slices.Equal(w.evicted, []string{"a", "b"}) {
			t.Errorf("evicted %v", w.evicted)
		}
		w.searches("ns") // the annotation may say so for a while
		if again := w.job(job.Name); again.UID != job.UID || again.Status.Result == "" {
			t.Errorf("there is another one: %+v", again)
		}
	})
}

// TestJobsOfOthersAlone: with automatic: false the controller ends what it made by itself, unless
// that has begun, and carries out what others made.
func TestJobsOfOthersAlone(t *testing.T) {
	for name, tt := range map[string]struct {
		job, after string
		// set reports whether the setting is changed now.
		changesNow func(*evictWorld) bool
		result     v1alpha1.Result
		reason     string
	}{
		"its own": {
			job: "evict-claim-uid", after: "2m", changesNow: func(*evictWorld) bool { return true },
			result: v1alpha1.ResultFailed, reason: ReasonEvictionRefused,
		},
		"its own, which has begun": {
			job: "evict-claim-uid", after: "0s", changesNow: func(w *evictWorld) bool { return w.taintValue() != "" },
			result: v1alpha1.ResultSucceeded, reason: ReasonHealthy,
		},
		"somebody's": {
			job: "job", after: "2m", changesNow: func(*evictWorld) bool { return true },
			result: v1alpha1.ResultSucceeded, reason: ReasonHealthy,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newEvictWorld(t)
				must(t, w.api.Update(w.ctx, theSettings("drivers: [driver]\nafter: "+tt.after)))
				if w.name = tt.job; tt.job != "job" {
					w.remove(w.job("job"))
					w.saysSick(shutDown)
					w.searches("ns")
				}
				w.kubelet = func() {
					if tt.changesNow(w) {
						must(t, w.api.Update(w.ctx, theSettings("drivers: [driver]\nautomatic: false\nafter: "+tt.after)))
					}
					w.kubeletEnds()
					w.scheduler()
				}
				says(t, w.runs(), tt.result, tt.reason, "")
				w.clean()
				if (len(w.evicted) > 0) != (tt.result == v1alpha1.ResultSucceeded) {
					t.Errorf("evicted %v", w.evicted)
				}
			})
		})
	}
}

// TestBusyWhileItWaits: a node that has no time for one question does not end a job that sees the volume
// sick for the long time which the settings ask for; the next one would count from the start.
func TestBusyWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		must(t, w.api.Update(w.ctx, theSettings("drivers: [driver]\nafter: 30m")))
		w.remove(w.job("job"))
		w.saysSick(shutDown)
		w.name = w.searches("ns")[0]
		busy, began := hindered(ReasonVolumeBusy, passing, "other jobs ask the node"), time.Now()
		w.kubelet = func() {
			if w.node.answer = nil; time.Since(began).Truncate(time.Minute) == 20*time.Minute {
				w.node.answer = &busy
			}
			w.kubeletEnds()
			w.scheduler()
		}
		says(t, w.runs(), v1alpha1.ResultSucceeded, ReasonHealthy, "")
		w.clean()
	})
}

// TestNothingIsMadeFor claims without what only new pods mend, or where somebody forbids it.
func TestNothingIsMadeFor(t *testing.T) {
	for name, change := range map[string]func(*evictWorld){
		"nothing said": func(w *evictWorld) { w.saysSick("") },
		"jobs of others alone": func(w *evictWorld) {
			must(w.t, w.api.Update(w.ctx, theSettings("drivers: [driver]\nautomatic: false")))
		},
		"a healthy volume":         func(w *evictWorld) { w.saysSick(`{"state":"healthy","evictable":["FilesystemShutdown"]}`) },
		"one with something else":  func(w *evictWorld) { w.saysSick(`{"state":"unhealthy","evictable":[]}`) },
		"what the setting has not": func(w *evictWorld) { w.saysSick(`{"state":"unhealthy","evictable":["FilesystemErrors"]}`) },
		"what was said long ago": func(w *evictWorld) {
			w.saysSick(`{"state":"unhealthy","evictable":["FilesystemShutdown"],"lastChecked":"1999-12-31T20:00:00Z"}`)
		},
		"what another node says to work since": func(w *evictWorld) {
			o := movedVolume("claim", corev1.ReadWriteOnce)
			w.update("ns", "claim", &corev1.PersistentVolumeClaim{}, func(claim client.Object) {
				said := o[0].GetAnnotations()
				said[volumehealth.Annotation+"node-uid"] = strings.Replace(said[volumehealth.Annotation+"node-uid"], "{", `{"evictable":["FilesystemShutdown"],`, 1)
				claim.SetAnnotations(said)
			})
			w.update("", "pv", &corev1.PersistentVolume{}, func(pv client.Object) {
				pv.(*corev1.PersistentVolume).Spec.AccessModes = o[1].(*corev1.PersistentVolume).Spec.AccessModes
			})
		},
		"another driver":           func(w *evictWorld) { must(w.t, w.api.Update(w.ctx, theSettings("drivers: [other]"))) },
		"no setting":               func(w *evictWorld) { w.remove(theSettings("")) },
		"a claim without a volume": func(w *evictWorld) { _, pv := boundClaim(); w.remove(pv) },
		"another mode": func(w *evictWorld) {
			settings := theSettings("drivers: [driver]")
			settings.Data["mode"] = "check"
			must(w.t, w.api.Update(w.ctx, settings))
		},
		"a namespace that forbids it": func(w *evictWorld) { w.annotate("", "ns", &corev1.Namespace{}) },
		"a volume that forbids it":    func(w *evictWorld) { w.annotate("", "pv", &corev1.PersistentVolume{}) },
		"a claim that forbids it": func(w *evictWorld) {
			w.update("ns", "claim", &corev1.PersistentVolumeClaim{}, func(o client.Object) {
				o.GetAnnotations()["node-healer.csi-addons.io/evict"] = "false"
			})
		},
		"a claim that has one": func(w *evictWorld) { w.create(evictJob("evict-claim-uid")) },
	} {
		w := newEvictWorld(t)
		w.saysSick(shutDown)
		change(w)
		before := w.writes
		if w.searches("ns"); w.writes != before {
			t.Errorf("for %s", name)
		}
	}
}

// TestForgedAnnotationsCostLittle: whatever a namespace's claims say, others get their jobs, and
// no more is read of its volumes.
func TestForgedAnnotationsCostLittle(t *testing.T) {
	w := newEvictWorld(t)
	w.saysSick(shutDown)
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "aaa"}})
	for i := range 100 {
		driver := "other"
		if i > 50 {
			driver = "driver"
		}
		for _, o := range sickVolume(fmt.Sprintf("c%02d", i), driver) {
			if claim, is := o.(*corev1.PersistentVolumeClaim); is {
				claim.Namespace = "aaa"
				claim.Annotations[volumehealth.Annotation+"node-uid"] = shutDown
			}
			if pv, is := o.(*corev1.PersistentVolume); is {
				pv.Spec.ClaimRef.Namespace = "aaa"
			}
			w.create(o)
		}
	}
	reads := 0
	w.reconciler.cfg.Reader = failing(w.reconciler.cfg.Reader, func(o client.Object, _ client.ObjectList) bool {
		if _, is := o.(*corev1.PersistentVolume); is {
			reads++
		}
		return false
	})
	if made := w.searches("ns"); len(made) != 1 || reads > maxSearched+1 {
		t.Errorf("made %v; read %d volumes", made, reads)
	}
	if made := w.searches("aaa"); len(made) > 1 {
		t.Errorf("in one namespace: %v", made)
	}
}

// TestOneNamespaceKeepsNoneFromIts jobs by refusing its own.
func TestOneNamespaceKeepsNoneFromIts(t *testing.T) {
	w := newEvictWorld(t)
	w.saysSick(shutDown)
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "aaa"}})
	for _, o := range sickVolume("c", "driver") {
		if claim, is := o.(*corev1.PersistentVolumeClaim); is {
			claim.Namespace = "aaa"
			claim.Annotations[volumehealth.Annotation+"node-uid"] = shutDown
		}
		if pv, is := o.(*corev1.PersistentVolume); is {
			pv.Spec.ClaimRef.Namespace = "aaa"
		}
		w.create(o)
	}
	errQuota := errors.New("the namespace has too many")
	w.reconciler.cfg.Writer = interceptor.NewClient(w.api.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, api client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if o.GetNamespace() == "aaa" {
				return errQuota
			}
			return api.Create(ctx, o, options...)
		},
	})
	if err := w.reconciler.search(w.ctx); !errors.Is(err, errQuota) {
		t.Errorf("got %v", err)
	}
	w.job("evict-claim-uid")
}

// TestAutomaticJobComesAgain when the one before is gone, and a claim of that name that came
// since is another one.
func TestAutomaticJobComesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		w.remove(w.job("job"))
		w.saysSick(shutDown)
		w.node.found = nil // it recovered
		w.searches("ns")
		w.name = "evict-claim-uid"
		says(t, w.runs(), v1alpha1.ResultSucceeded, ReasonHealthy, "")
		time.Sleep(automaticTTL * time.Second)
		_, err := w.step()
		must(t, err)
		if made := w.searches("ns"); len(made) != 1 || w.job(made[0]).Status.Result != "" {
			t.Errorf("made %v", made)
		}
		if got := ptr.Deref(w.job("evict-claim-uid").Spec.TTLSecondsAfterFinished, 0); got != automaticTTL {
			t.Errorf("stays for %d", got)
		}
	})
}
