package controller

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
)

var errRefusedConn = errors.New("the connection was refused")

// reading has each read fail with what fails returns. Of what is read alone it knows the name.
func (w *evictWorld) reading(fails func(o any) error) {
	w.reconciler.cfg.Reader = interceptor.NewClient(notEndedPods(w.api).(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			o.SetName(key.Name)
			if err := fails(o); err != nil {
				return err
			}
			return api.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, api client.WithWatch, o client.ObjectList, opts ...client.ListOption) error {
			if err := fails(o); err != nil {
				return err
			}
			return api.List(ctx, o, opts...)
		},
	})
}

// until steps until the job has ended or the time is over.
func (w *evictWorld) until(most time.Duration) *v1alpha1.VolumeHealJob {
	for start := time.Now(); time.Since(start) < most; {
		result, err := w.step()
		if job := w.job(w.name); job.Status.Result != "" {
			return job
		}
		if w.kubelet != nil {
			w.kubelet()
		}
		wait := max(result.RequeueAfter, time.Second)
		if err != nil {
			wait = time.Minute
		}
		time.Sleep(wait)
	}
	return w.job(w.name)
}

// One error of the API at the read of a pod ends no job.
func TestOneErrorAtTheLastLook(t *testing.T) {
	for _, when := range []string{"before", "taint stands"} {
		for name, fault := range map[string]error{
			"refused":           errRefusedConn,
			"503":               apierrors.NewServiceUnavailable("not now"),
			"it went":           apierrors.NewNotFound(corev1.Resource("pods"), "a"),
			"too many requests": apierrors.NewTooManyRequests("priority and fairness", 1),
		} {
			t.Run(when+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newEvictWorld(t)
					fails := 0
					w.reading(func(o any) error {
						if m, is := o.(*metav1.PartialObjectMetadata); is && m.Kind == "Pod" && fails == 0 && (when == "before") == (w.taintValue() == "") {
							fails++
							return fault
						}
						return nil
					})
					w.kubelet = func() { w.kubeletEnds(); w.scheduler() }
					job := w.until(time.Hour)
					if fails != 1 || job.Status.Result != v1alpha1.ResultSucceeded {
						t.Errorf("evicted %v, fails %d: %+v", w.evicted, fails, job.Status.Conditions)
					}
				})
			})
		}
	}
}

// What the API answers with an error for good ends the job at last.
func TestAnErrorForGoodEndsAJob(t *testing.T) {
	for name, fault := range map[string]error{
		"500":            apierrors.NewInternalError(errors.New("conversion webhook for networkfences failed")),
		"not of the API": errors.New("Client.Timeout exceeded while awaiting headers"),
		"403":            apierrors.NewForbidden(corev1.Resource("networkfences"), "", errors.New("no")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newEvictWorld(t)
				w.reading(func(o any) error {
					if l, is := o.(*unstructured.UnstructuredList); is && l.GetKind() == networkFences.Kind {
						return fault
					}
					return nil
				})
				job := w.until(48 * time.Hour)
				if job.Status.Result == "" {
					t.Errorf("it never ends: %+v", job.Status.Conditions)
				}
			})
		})
	}
}

// A job whose deadline is long over begins no eviction.
func TestNoEvictionLongAfterTheDeadline(t *testing.T) {
	for _, seen := range []bool{false, true} {
		t.Run(map[bool]string{false: "never asked", true: "seen sick once"}[seen], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newEvictWorld(t)
				if seen {
					must(t, w.api.Update(w.ctx, theSettings("drivers: [driver]\nafter: 2m\n")))
				}
				job := w.job("job")
				job.Spec.RetryDeadlineSeconds = ptr.To[int64](60)
				must(t, w.api.Update(w.ctx, job))
				start := time.Now()
				sickSeen := 0
				w.reading(func(o any) error {
					if l, is := o.(*unstructured.UnstructuredList); is && l.GetKind() == networkFences.Kind {
						if seen && sickSeen == 0 {
							sickSeen++
							return nil
						}
						if time.Since(start) < 6*time.Hour {
							return errRefusedConn
						}
					}
					return nil
				})
				w.kubelet = func() { w.kubeletEnds(); w.scheduler() }
				job = w.until(12 * time.Hour)
				if len(w.evicted) > 0 {
					t.Errorf("evicted %v %v after the job began: %+v", w.evicted, time.Since(start), job.Status.Conditions)
				}
			})
		})
	}
}

// After the pods went, what is refused for good ends the job.
func TestRefusedForGoodAfterTheEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		w.reading(func(o any) error {
			if _, is := o.(*corev1.PodList); is && len(w.evicted) == 2 && w.taintValue() == "" {
				return apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no"))
			}
			return nil
		})
		w.kubelet = w.kubeletEnds
		job := w.until(48 * time.Hour)
		if job.Status.Result == "" {
			t.Errorf("it never ends: %+v", job.Status.Conditions)
		}
	})
}

// A job evicts once: also where the ledger has forgotten its eviction.
func TestAJobEvictsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		settled, pruned := time.Time{}, false
		w.reading(func(o any) error {
			if _, is := o.(*corev1.PodList); is && len(w.evicted) == 2 && w.taintValue() == "" {
				if settled.IsZero() {
					settled = time.Now()
				}
				if time.Since(settled) < 2*time.Hour {
					return errRefusedConn
				}
			}
			return nil
		})
		w.kubelet = func() {
			w.kubeletEnds()
			w.scheduler()
			if !settled.IsZero() && time.Since(settled) > 90*time.Minute && !pruned {
				pruned = true // another job's entry
				must(t, w.reconciler.changeLedger(w.ctx, func(l ledger) ledger { return l }))
				w.node.found = []finding{shutdown} // it became sick again
			}
		}
		job := w.until(6 * time.Hour)
		if len(w.evicted) != 2 {
			t.Errorf("evicted %v: %+v", w.evicted, job.Status.Conditions)
		}
	})
}

// No controller leads for six hours after the volume was seen sick once.
func TestNoEvictionByALookOfHoursAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		must(t, w.api.Update(w.ctx, theSettings("drivers: [driver]\nafter: 2m\n")))
		job := w.job("job")
		job.Spec.RetryDeadlineSeconds = ptr.To[int64](60)
		must(t, w.api.Update(w.ctx, job))
		start := time.Now()
		_, err := w.step()
		must(t, err)
		if w.job("job").Status.SickSince == nil {
			t.Fatal("not seen sick")
		}
		time.Sleep(6 * time.Hour)
		w.restartEvict()
		w.kubelet = func() { w.kubeletEnds(); w.scheduler() }
		job = w.until(12 * time.Hour)
		if len(w.evicted) > 0 {
			t.Errorf("evicted %v %v after the job began: %+v", w.evicted, time.Since(start), job.Status.Conditions)
		}
	})
}

// No controller leads for two hours after the eviction, and the ledger forgets it.
func TestAJobEvictsOnceAlthoughNobodyLed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		w.kubelet = func() { w.kubeletEnds(); w.scheduler() }
		for len(w.evicted) < 2 || w.taintValue() != "" {
			_, err := w.step()
			must(t, err)
			w.kubelet()
			time.Sleep(2 * time.Second)
		}
		w.kubelet()
		if w.job("job").Status.Result != "" {
			t.Fatal("ended")
		}
		time.Sleep(2 * time.Hour)
		w.restartEvict()
		must(t, w.reconciler.changeLedger(w.ctx, func(l ledger) ledger { return l }))
		w.node.found, w.node.staged = []finding{shutdown}, true
		job := w.until(6 * time.Hour)
		if len(w.evicted) != 2 {
			t.Errorf("evicted %v: %+v", w.evicted, job.Status.Conditions)
		}
	})
}

// The ledger's end is in the future, by another controller's clock, and the API refuses for good.
func TestClockAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		w.kubelet = func() { w.kubeletEnds(); w.scheduler() }
		for len(w.evicted) < 2 || w.taintValue() != "" {
			_, err := w.step()
			must(t, err)
			w.kubelet()
			time.Sleep(2 * time.Second)
		}
		must(t, w.reconciler.changeLedger(w.ctx, func(l ledger) ledger {
			for i := range l {
				l[i].End = time.Now().Add(365 * 24 * time.Hour).Unix()
			}
			return l
		}))
		w.reading(func(o any) error {
			if _, is := o.(*corev1.PersistentVolumeClaim); is {
				return errors.New("no")
			}
			return nil
		})
		job := w.until(48 * time.Hour)
		if job.Status.Result == "" {
			t.Errorf("never ends %+v", job.Status.Conditions)
		}
	})
}

// A job waits for evict.after beyond its deadline. The claim's read fails once, or a pod's, or its dry run, or the pod changes
// between these two, or claim and settings cannot be read for a minute.
func TestErrorsWhileItWaits(t *testing.T) {
	for _, what := range []string{"get claim", "get pod", "dry run 503", "dry run 500", "pod changes", "claim and settings"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newEvictWorld(t)
				must(t, w.api.Update(w.ctx, theSettings("drivers: [driver]\nafter: 15m\n")))
				start, fails := time.Now(), 0
				w.reading(func(o any) error {
					late := time.Since(start) > 11*time.Minute && fails == 0
					m, is := o.(*metav1.PartialObjectMetadata)
					_, claim := o.(*corev1.PersistentVolumeClaim)
					settings, of := o.(*corev1.ConfigMap)
					switch {
					case what == "claim and settings" && time.Since(start).Truncate(time.Minute) == 11*time.Minute && (claim || of && settings.Name == "settings"):
						return errRefusedConn
					case what == "get claim" && claim && late:
						fails++
						return errRefusedConn
					case what == "get pod" && is && m.Kind == "Pod" && late:
						fails++
						return errRefusedConn
					case what == "dry run 503" && late:
						fails++
						w.refuse = map[string]error{"a": apierrors.NewServiceUnavailable("not now")}
					case what == "dry run 500" && late:
						fails++
						w.refuse = map[string]error{"a": apierrors.NewInternalError(errors.New("etcdserver: leader changed"))}
					case what == "pod changes" && is && m.Kind == "Pod" && late:
						fails++
						w.update("ns", "a", &corev1.Pod{}, func(o client.Object) { o.SetLabels(map[string]string{"x": "y"}) })
					case fails == 1 && time.Since(start) > 12*time.Minute:
						w.refuse = nil
					}
					return nil
				})
				w.kubelet = func() { w.kubeletEnds(); w.scheduler() }
				job := w.until(6 * time.Hour)
				if job.Status.Result != v1alpha1.ResultSucceeded || len(w.evicted) != 2 {
					t.Errorf("after %v evicted %v: %+v", time.Since(start), w.evicted, job.Status.Conditions)
				}
			})
		})
	}
}

// An error for good ends a job also after it saw the volume sick, or evicted its pods.
func TestAnErrorForGoodAfterItWasSick(t *testing.T) {
	for _, evicts := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newEvictWorld(t)
			if !evicts {
				must(t, w.api.Update(w.ctx, theSettings("drivers: [driver]\nafter: 2m\n")))
			}
			w.kubelet = func() { w.kubeletEnds(); w.scheduler() }
			start := time.Now()
			_, err := w.step()
			must(t, err)
			for evicts && (len(w.evicted) < 2 || w.taintValue() != "") {
				_, err := w.step()
				must(t, err)
				w.kubelet()
				time.Sleep(2 * time.Second)
			}
			w.reading(func(o any) error {
				if _, is := o.(*corev1.PersistentVolumeClaim); is {
					return apierrors.NewForbidden(corev1.Resource("persistentvolumeclaims"), "", errors.New("no"))
				}
				return nil
			})
			job := w.until(48 * time.Hour)
			if job.Status.Result == "" || time.Since(start) > time.Hour {
				t.Errorf("evicts %t: ended after %v: %+v", evicts, time.Since(start), job.Status.Conditions)
			}
		})
	}
}

// A job ends, also where the controller may not read the settings, which its eviction needs.
func TestAnEvictionEndsWithoutSettings(t *testing.T) {
	for _, sick := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newEvictWorld(t)
			if sick {
				must(t, w.api.Update(w.ctx, theSettings("drivers: [driver]\nafter: 15m\n")))
				_, err := w.step()
				must(t, err)
			}
			w.reading(func(o any) error {
				if m, is := o.(*corev1.ConfigMap); is && m.Name == "settings" {
					return apierrors.NewForbidden(corev1.Resource("configmaps"), "settings", errors.New("no"))
				}
				return nil
			})
			if job := w.until(48 * time.Hour); job.Status.Result == "" || (job.Status.SickSince != nil) != sick {
				t.Errorf("sick %t: %+v", sick, job.Status)
			}
		})
	}
}

// A job that only checks ends by its deadline, also where the settings cannot be read.
func TestACheckEndsWithoutSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		job := w.job("job")
		job.Spec.Mode = v1alpha1.ModeCheck
		must(t, w.api.Update(w.ctx, job))
		w.reading(func(o any) error {
			switch o.(type) {
			case *corev1.PersistentVolumeClaim, *corev1.ConfigMap:
				return apierrors.NewForbidden(corev1.Resource("any"), "", errors.New("no"))
			}
			return nil
		})
		if job := w.until(time.Hour); job.Status.Result == "" {
			t.Errorf("it does not end: %+v", job.Status.Conditions)
		}
	})
}
