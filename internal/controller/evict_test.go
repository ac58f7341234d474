package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/csi-addons/node-healer/pkg/api/clustersettings"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
	"github.com/csi-addons/node-healer/pkg/api/volumehealth"
)

func TestPodsAreEvictedAndTheVolumeStagedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		w.kubelet = func() { w.kubeletEnds(); w.scheduler() }
		job := w.runs()
		says(t, job, v1alpha1.ResultSucceeded, ReasonHealthy, "healthy")
		w.clean()
		if !slices.Equal(w.evicted, []string{"a", "b"}) || w.dryRuns < 4 {
			t.Errorf("evicted %v, tried %d times", w.evicted, w.dryRuns)
		}
		all, _, err := w.reconciler.readLedger(t.Context())
		must(t, err)
		if testutil.ToFloat64(w.reconciler.evictions.WithLabelValues("driver", "Succeeded")) != 1 {
			t.Error("it is not counted")
		}
		if len(all) != 1 || all[0].Node != "node-1" || all[0].Outcome != succeeded || len(all[0].Pods) != 2 || len(job.Status.Nodes) != 1 {
			t.Errorf("got %+v, %+v", all, job.Status)
		}
	})
}

// TestTheTaintStandsUntilTheNodeHasUnstaged, also when all pods are gone.
func TestTheTaintStandsUntilTheNodeHasUnstaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		waited := 0
		w.kubelet = func() {
			staged := w.node.staged
			w.kubeletEnds()
			if len(w.evicted) == 2 && waited < 20 {
				waited++
				w.node.staged = staged
				if w.taintValue() == "" {
					t.Error("the taint is gone while the volume is staged")
				}
				return
			}
			w.scheduler()
		}
		says(t, w.runs(), v1alpha1.ResultSucceeded, ReasonHealthy, "")
		w.clean()
	})
}

// TestNewPodsThatAreSickAreAskedAgain: they should have had the volume as it should be.
func TestNewPodsThatAreSickAreAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		w.kubelet = func() {
			w.kubeletEnds()
			w.scheduler()
			w.node.found = []finding{shutdown}
		}
		job := w.runs()
		says(t, job, v1alpha1.ResultFailed, ReasonAbnormal, "")
		if len(job.Status.Nodes) != 1 || job.Status.Nodes[0].Tries < 2 {
			t.Errorf("got %+v", job.Status.Nodes)
		}
		w.clean()
	})
}

// TestVolumeInUseKeepsTheTaint where the driver has attachments, and only there.
func TestVolumeInUseKeepsTheTaint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		node := w.theNode()
		node.Status.VolumesInUse = []corev1.UniqueVolumeName{"kubernetes.io/csi/driver^handle"}
		must(t, w.api.Status().Update(t.Context(), node))
		w.kubelet = w.kubeletEnds
		says(t, w.runs(), v1alpha1.ResultFailed, ReasonEvictionGaveUp, "did not end within")
		w.clean()
	})
}

func TestDryRunEvictsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		job := w.job("job")
		job.Spec.DryRun = true
		must(t, w.api.Update(t.Context(), job))
		says(t, w.runs(), v1alpha1.ResultSucceeded, ReasonWouldEvict, "2 pods (a, b)")
		w.clean()
		if len(w.evicted) > 0 || w.dryRuns != 2 {
			t.Errorf("evicted %v, tried %d", w.evicted, w.dryRuns)
		}
	})
}

var givenUp = map[string]struct {
	// then happens once as many pods were evicted as evicted says, and the taint stands.
	evicted int
	then    func(w *evictWorld)
	why     string
	goes    int
}{
	"a budget": {
		then: func(w *evictWorld) { w.refuse = map[string]error{"b": errBudget} },
		why:  "pod b may not be evicted",
	},
	"healthy meanwhile": {then: func(w *evictWorld) { w.node.found = nil }, why: "nothing was found"},
	"the device is gone": {
		evicted: 1,
		then: func(w *evictWorld) {
			w.node.found = append(w.node.found, finding{reason: "DeviceMissing", message: "gone"})
		},
		why:  "no new pod is known to end DeviceMissing",
		goes: 1,
	},
	"a pod by nodeName": {
		evicted: 1,
		then:    func(w *evictWorld) { must(w.t, w.api.Create(w.t.Context(), appPod("node-1", "new"))) },
		why:     "pod new came to the node",
		goes:    1,
	},
	"stopped by the settings": {
		evicted: 1,
		then: func(w *evictWorld) {
			settings := theSettings("drivers: [driver]")
			settings.Data["mode"] = "off"
			must(w.t, w.api.Update(w.t.Context(), settings))
		},
		why:  `mode "off"`,
		goes: 1,
	},
	"the taint was removed by hand": {
		evicted: 1,
		then: func(w *evictWorld) {
			node := w.theNode()
			node.Spec.Taints = node.Spec.Taints[:1]
			must(w.t, w.api.Update(w.t.Context(), node))
		},
		why:  "pods have ended, and the node does not have the taint",
		goes: 1,
	},
	"a budget after the first": {
		evicted: 1,
		then:    func(w *evictWorld) { w.refuse = map[string]error{"b": errBudget} },
		why:     "within 10m0s; last: 1 of 2 pods were evicted; evict pod b: the disruption budget",
		goes:    1,
	},
	"no answer any more": {
		evicted: 1,
		then:    func(w *evictWorld) { o := hindered(ReasonNodeNotReady, passing, ""); w.node.answer = &o },
		why:     "did not end within",
		goes:    1,
	},
	"another claim": {
		evicted: 2,
		then: func(w *evictWorld) {
			claim, _ := boundClaim()
			w.remove(claim)
			claim.UID, claim.ResourceVersion = "another", ""
			w.create(claim)
			w.update("", "pv", &corev1.PersistentVolume{}, func(o client.Object) { o.(*corev1.PersistentVolume).Spec.ClaimRef.UID = "another" })
		},
		why:  "another claim has its name",
		goes: 2,
	},
	"never unstaged": {
		evicted: 2,
		then:    func(w *evictWorld) { w.kubelet = func() {} },
		why:     "did not end within",
		goes:    2,
	},
}

// TestGivesUp where something comes between; all that it did is taken back.
func TestGivesUp(t *testing.T) {
	for name, tc := range givenUp {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newEvictWorld(t)
				did := false
				w.kubelet = func() {
					if !did && w.taintValue() != "" && len(w.evicted) == tc.evicted {
						did = true
						tc.then(w)
					}
				}
				says(t, w.runs(), v1alpha1.ResultFailed, ReasonEvictionGaveUp, tc.why)
				w.clean()
				if testutil.ToFloat64(w.reconciler.evictions.WithLabelValues("driver", "Failed")) != 1 {
					t.Error("it is not counted")
				}
				if len(w.evicted) != tc.goes {
					t.Errorf("evicted %v", w.evicted)
				}
			})
		})
	}
}

// TestStopCountsWhileTheNodeIsAsked: whatever a person stops an eviction by, nothing is done after
// it, before the eviction begins, before its taint, and before its first pod. What a pod asks for
// counts when it would be evicted: the taint may come and go.
func TestStopCountsWhileTheNodeIsAsked(t *testing.T) {
	for name, stop := range map[string]func(*evictWorld){
		"the settings": func(w *evictWorld) { w.remove(theSettings("")) },
		"a mode": func(w *evictWorld) {
			settings := theSettings("drivers: [driver]\nafter: 0s")
			settings.Data["mode"] = "check"
			must(w.t, w.api.Update(w.ctx, settings))
		},
		"the job": func(w *evictWorld) { w.remove(evictJob("job")) },
		"another job": func(w *evictWorld) {
			w.remove(evictJob("job"))
			another := evictJob("job")
			another.UID, another.Spec.DryRun = "another", true
			w.create(another)
		},
		"the namespace": func(w *evictWorld) { w.annotate("", "ns", &corev1.Namespace{}) },
		"the claim":     func(w *evictWorld) { w.annotate("ns", "claim", &corev1.PersistentVolumeClaim{}) },
		"the volume":    func(w *evictWorld) { w.annotate("", "pv", &corev1.PersistentVolume{}) },
		"a pod": func(w *evictWorld) {
			w.update("ns", "a", &corev1.Pod{}, func(o client.Object) { o.SetAnnotations(map[string]string{safeToEvict: "false"}) })
		},
	} {
		for when, reached := range map[string]func(l ledger, taint string) bool{
			"at the start":     func(ledger, string) bool { return true },
			"before the taint": func(l ledger, _ string) bool { return len(l) == 1 },
			"before the pod":   func(_ ledger, taint string) bool { return taint != "" },
		} {
			t.Run(name+", "+when, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newEvictWorld(t)
					begun, before := 0, ""
					w.node.during = func() {
						all, _, err := w.reconciler.readLedger(w.ctx)
						must(t, err)
						if before = w.taintValue(); reached(all, before) {
							w.node.during, begun = nil, len(all)
							stop(w)
						}
					}
					for range 10 {
						_, err := w.step()
						if err != nil && !errors.Is(err, errJobDeleted) {
							t.Fatal(err)
						}
						if all, _, _ := w.reconciler.readLedger(w.ctx); w.node.during == nil && (len(w.evicted) > 0 || len(all) > begun || name != "a pod" && before == "" && w.taintValue() != "") {
							t.Fatalf("evicted %v, ledger %+v, taint %q", w.evicted, all, w.taintValue())
						}
						time.Sleep(evictCheckTimeout)
					}
					must(t, w.reconciler.sweep(w.ctx))
					w.clean()
				})
			})
		}
	}
}

// TestSettingsCountWhileTheNodeIsAsked: an automatic job begins by the settings that hold once the node answered.
func TestSettingsCountWhileTheNodeIsAsked(t *testing.T) {
	for _, set := range []string{"drivers: [driver]\nafter: 0s\nautomatic: false\n", "drivers: [driver]\nafter: 24h\n"} {
		t.Run(set, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newEvictWorld(t)
				w.remove(evictJob("job"))
				w.name = automaticPrefix + "claim-uid"
				w.create(evictJob(w.name))
				w.node.during = func() {
					w.node.during = nil
					must(t, w.api.Update(w.ctx, theSettings(set)))
				}
				for range 10 {
					result, err := w.step()
					must(t, err)
					time.Sleep(result.RequeueAfter)
				}
				if all, _, _ := w.reconciler.readLedger(w.ctx); len(w.evicted)+len(all) > 0 {
					t.Errorf("evicted %v, ledger %+v", w.evicted, all)
				}
			})
		})
	}
}

// TestPodThatChangesAfterTheDeadline: the job goes on, and its taint stays while a pod that was evicted ends.
func TestPodThatChangesAfterTheDeadline(t *testing.T) {
	for _, went := range []int{0, 1} {
		t.Run(fmt.Sprint(went), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newEvictWorld(t)
				must(t, w.api.Update(w.ctx, theSettings("drivers: [driver]\nafter: 2m\n")))
				job := w.job("job")
				job.Spec.RetryDeadlineSeconds = ptr.To[int64](60)
				must(t, w.api.Update(w.ctx, job))
				w.node.during = func() {
					if len(w.evicted) == went && w.taintValue() != "" {
						w.node.during = nil
						w.update("ns", []string{"a", "b"}[went], &corev1.Pod{}, func(o client.Object) { o.SetLabels(map[string]string{"is": "another"}) })
					}
				}
				for len(w.evicted) < 2 {
					result, err := w.step()
					must(t, err)
					if job := w.job("job"); job.Status.Result != "" {
						t.Fatalf("evicted %v, taint %q: %+v", w.evicted, w.taintValue(), job.Status.Conditions)
					}
					time.Sleep(result.RequeueAfter)
				}
			})
		})
	}
}

// TestOneErrorAfterTheDeadline ends no job that waits for the new pods.
func TestOneErrorAfterTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		must(t, w.api.Update(w.ctx, theSettings("drivers: [driver]\nafter: 15m\n")))
		fails := 0
		w.reconciler.cfg.Reader = interceptor.NewClient(notEndedPods(w.api).(client.WithWatch), interceptor.Funcs{
			Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				settled := len(w.evicted) == 2 && w.taintValue() == ""
				if _, is := o.(*corev1.PersistentVolumeClaim); is && settled && fails == 0 {
					fails++
					return errors.New("the connection was refused")
				}
				return api.Get(ctx, key, o, opts...)
			},
		})
		w.kubelet = w.kubeletEnds
		for fails == 0 || w.job("job").Status.Result == "" {
			result, err := w.step()
			if err != nil && fails == 0 {
				t.Fatal(err)
			}
			if c := condition(w.job("job"), v1alpha1.ConditionProgressing); c.Reason == ReasonDeadline {
				t.Fatalf("it ended: %s", c.Message)
			}
			w.kubelet()
			time.Sleep(max(result.RequeueAfter, time.Second))
		}
	})
}

// staleWorld has a third pod on the node, and one elsewhere; containers of a and b still have
// the instance of before.
func staleWorld(t *testing.T) *evictWorld {
	t.Helper()
	w := newEvictWorld(t, appPod("node-1", "c"), appPod("node-2", "d"))
	w.stays = true
	w.node.found = []finding{{reason: "StaleInContainers", newPod: "a-uid"}, {reason: "ContainerUnverified", newPod: "b-uid"}}
	w.kubelet = func() {
		for _, name := range []string{"a", "b"} {
			pod := &corev1.Pod{}
			if w.api.Get(w.ctx, client.ObjectKey{Namespace: "ns", Name: name}, pod) == nil && pod.DeletionTimestamp != nil {
				pod.Finalizers = nil
				must(w.t, w.api.Update(w.ctx, pod))
				w.node.found = slices.DeleteFunc(w.node.found, func(f finding) bool { return f.newPod == pod.UID })
			}
		}
	}
	return w
}

// TestOnlyPodsWithTheInstanceOfBeforeAreEvicted, without a taint: the volume stays staged for
// the others.
func TestOnlyPodsWithTheInstanceOfBeforeAreEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := staleWorld(t)
		ends := w.kubelet
		w.kubelet = func() {
			ends()
			if len(w.evicted) == 1 && w.api.Get(w.ctx, client.ObjectKey{Namespace: "ns", Name: "new"}, &corev1.Pod{}) != nil {
				w.create(appPod("node-1", "new")) // which may come to the node at once
			}
		}
		says(t, w.runs(), v1alpha1.ResultSucceeded, ReasonHealthy, "")
		w.clean()
		all, _, err := w.reconciler.readLedger(t.Context())
		must(t, err)
		if !slices.Equal(w.evicted, []string{"a", "b"}) || len(all) != 1 || !all[0].NoTaint || all[0].Outcome != succeeded {
			t.Errorf("evicted %v; %+v", w.evicted, all)
		}
	})
}

// TestPodsWithTheInstanceOfBeforeStay where something comes between.
func TestPodsWithTheInstanceOfBeforeStay(t *testing.T) {
	for name, tc := range map[string]struct {
		evicted int
		then    func(w *evictWorld)
		why     string
	}{
		"a budget": {
			then: func(w *evictWorld) { w.refuse = map[string]error{"b": errBudget} },
			why:  "pod b may not be evicted",
		},
		"the second recovers first": {
			evicted: 1,
			then:    func(w *evictWorld) { w.node.found = w.node.found[:1] },
			why:     "no pod of the node has to go",
		},
		"the second recovers": {evicted: 1, then: func(w *evictWorld) { w.node.found = nil }, why: "nothing was found"},
		"the volume shuts itself down": {
			evicted: 1,
			then:    func(w *evictWorld) { w.node.found = append(w.node.found, shutdown) },
			why:     "something else is wrong now",
		},
		"the server is gone": {
			evicted: 1,
			then:    func(w *evictWorld) { w.node.found = append(w.node.found, finding{reason: "ServerUnreachable"}) },
			why:     "no new pod is known to end ServerUnreachable",
		},
		"never ends": {
			evicted: 2,
			then:    func(w *evictWorld) { w.kubelet = func() {} },
			why:     "2 evicted pods of node node-1 have not ended",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := staleWorld(t)
				ends, did := w.kubelet, false
				w.kubelet = func() {
					all, _, _ := w.reconciler.readLedger(w.ctx)
					if !did && len(all) == 1 && len(w.evicted) == tc.evicted {
						did = true
						tc.then(w)
						return
					}
					if tc.evicted < 2 {
						ends()
					}
				}
				says(t, w.runs(), v1alpha1.ResultFailed, ReasonEvictionGaveUp, tc.why)
				w.clean()
				if len(w.evicted) != tc.evicted {
					t.Errorf("evicted %v", w.evicted)
				}
			})
		})
	}
}

// TestTheNodeThatIsSickIsAsked, and not the first one with a pod.
func TestTheNodeThatIsSickIsAsked(t *testing.T) {
	claim, _ := boundClaim()
	claim.Annotations = map[string]string{volumehealth.Annotation + "u": `{"state":"unhealthy","node":"node-2"}`, volumehealth.Annotation + "v": `{"state":"healthy","node":"node-1"}`}
	pods := []corev1.Pod{*appPod("", "pending"), *appPod("node-1", "a"), *appPod("node-2", "b")}
	if got := nodeToAsk(claim, pods); got != "node-2" {
		t.Errorf("got %s", got)
	}
	if got := nodeToAsk(claim, pods[:2]); got != "node-1" {
		t.Errorf("no pod is on node-2: got %s", got)
	}
}

// TestControllerEndsAnywhere has the process end before and after each write: the next one
// ends what was begun or takes it back.
func TestControllerEndsAnywhere(t *testing.T) {
	for name, start := range map[string]func(*testing.T) *evictWorld{
		"all pods": func(t *testing.T) *evictWorld {
			t.Helper()
			w := newEvictWorld(t)
			w.kubelet = func() { w.kubeletEnds(); w.scheduler() }
			return w
		},
		"some pods": staleWorld,
	} {
		writes := 0
		synctest.Test(t, func(t *testing.T) {
			w := start(t)
			w.runs()
			writes = w.writes
		})
		if writes < 8 {
			t.Fatalf("%s: only %d writes", name, writes)
		}
		for dies := 1; dies <= writes; dies++ {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, write %d, written %t", name, dies, after), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						w := start(t)
						w.dies, w.after = dies, after
						w.endsAnywhere()
					})
				})
			}
		}
	}
}

func (w *evictWorld) endsAnywhere() {
	w.t.Helper()
	job := w.runs()
	w.clean()
	if len(w.evicted) != len(slices.Compact(slices.Sorted(slices.Values(w.evicted)))) {
		w.t.Errorf("evicted %v", w.evicted)
	}
	reason := condition(job, v1alpha1.ConditionFailed).Reason
	if job.Status.Result == v1alpha1.ResultFailed && reason != ReasonEvictionGaveUp {
		w.t.Errorf("got %+v", job.Status)
	}
}

// TestLimitsHoldForJobsAtTheSameTime: another controller writes an eviction of the claim down
// after this one has read the ledger.
func TestLimitsHoldForJobsAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		now := time.Now().Unix()
		read := 0
		w.reconciler.cfg.Reader = failing(w.reconciler.cfg.Reader, func(o client.Object, _ client.ObjectList) bool {
			if kept, is := o.(*corev1.ConfigMap); is && kept.Name == ledgerName {
				if read++; read == 2 {
					ended := ledgerEntry{ClaimUID: "claim-uid", Start: now - 60, End: now - 50}
					raw, err := json.Marshal(ledger{ended, ended})
					must(t, err)
					w.writeLedger(string(raw))
				}
			}
			return false
		})
		says(t, w.runs(), v1alpha1.ResultFailed, ReasonEvictionRefused, "evicted 2 times within an hour")
		w.clean()
	})
}

// TestEvictionWhoseAnswerIsLost may be done: the taint stands until the volume is unstaged.
func TestEvictionWhoseAnswerIsLost(t *testing.T) {
	for name, answer := range map[string]error{
		"none":        context.DeadlineExceeded,
		"etcd's late": apierrors.NewInternalError(errors.New("etcdserver: request timed out")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newEvictWorld(t)
				w.lost = map[string]error{"a": answer}
				w.kubelet = func() { w.kubeletEnds(); w.scheduler() }
				says(t, w.runs(), v1alpha1.ResultSucceeded, ReasonHealthy, "")
				w.clean()
				if !slices.Equal(w.evicted, []string{"a", "b"}) {
					t.Errorf("evicted %v", w.evicted)
				}
			})
		})
	}
}

// TestPodThatWentByItselfIsNotCalledEvicted although the eviction of its name was asked for.
func TestPodThatWentByItselfIsNotCalledEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		w.kubelet = func() {
			w.kubeletEnds()
			switch {
			case len(w.evicted) == 1 && w.refuse == nil:
				w.refuse = map[string]error{"b": apierrors.NewNotFound(corev1.Resource("pods"), "b")}
			case w.refuse != nil && w.node.staged:
				if said := condition(w.job("job"), v1alpha1.ConditionProgressing).Message; !strings.Contains(said, "evicted pod a") {
					t.Errorf("says %q", said)
				}
				w.update("ns", "b", &corev1.Pod{}, func(o client.Object) { o.SetFinalizers(nil) })
				w.remove(appPod("node-1", "b"))
				w.kubeletEnds()
			}
			w.scheduler()
		}
		says(t, w.runs(), v1alpha1.ResultSucceeded, ReasonHealthy, "")
	})
}

// TestTaintsOfJobsThatAreGone are removed, and no others.
func TestTaintsOfJobsThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		for w.taintValue() == "" {
			w.reconcile("job")
		}
		must(t, w.reconciler.sweep(t.Context()))
		if w.taintValue() == "" {
			t.Fatal("the taint of a job that runs was removed")
		}
		must(t, w.api.Delete(t.Context(), w.job("job")))
		w.restartEvict()
		must(t, w.reconciler.sweep(t.Context()))
		w.clean()

		node := w.theNode()
		now := time.Now()
		node.Spec.Taints = append(node.Spec.Taints, taintOf("old", now.Unix()-660), taintOf("unknown", now.Unix()), taintOf("claim-uid", now.Unix()-5), corev1.Taint{Key: clustersettings.TaintPrefix + "bad", Value: "x", Effect: corev1.TaintEffectNoSchedule})
		must(t, w.api.Update(t.Context(), node))
		must(t, w.reconciler.sweep(t.Context()))
		w.clean()
	})
}

// TestTaintOfTheNextEvictionStays when what was read of the last one is cleaned up late.
func TestTaintOfTheNextEvictionStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		for w.taintValue() == "" {
			w.reconcile("job")
		}
		last := ledgerEntry{Node: "node-1", JobUID: "last", ClaimUID: "claim-uid", Start: time.Now().Add(-time.Minute).Unix()}
		must(t, w.reconciler.clean(t.Context(), last))
		if w.taintValue() == "" {
			t.Error("it was removed")
		}
	})
}

// TestLateTaintsAreRemoved whatever keeps their job from it, and whatever the ledger says.
func TestLateTaintsAreRemoved(t *testing.T) {
	for name, hinder := range map[string]func(w *evictWorld){
		"other jobs keep the claim busy": func(w *evictWorld) { w.reconciler.claims.take("ns/claim") },
		"the ledger cannot be read":      func(w *evictWorld) { w.writeLedger("[") },
		"the ledger was removed":         func(w *evictWorld) { w.remove(theLedger()) },
		"the clock was a day ahead": func(w *evictWorld) {
			ahead := time.Now().Add(24 * time.Hour).Unix()
			must(w.t, w.reconciler.changeEntry(w.ctx, "job-uid", func(e *ledgerEntry) { e.Start = ahead }))
			w.update("", "node-1", &corev1.Node{}, func(o client.Object) { o.(*corev1.Node).Spec.Taints[1] = taintOf("claim-uid", ahead) })
		},
		"another node cannot be written": func(w *evictWorld) {
			before := theNode("node-0")
			before.Spec.Taints = []corev1.Taint{taintOf("other", 0)}
			w.create(before)
			w.refuse = map[string]error{"node-0": errBudget}
			must(w.t, w.reconciler.changeEntry(w.ctx, "job-uid", func(e *ledgerEntry) { e.End = time.Now().Unix() }))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newEvictWorld(t)
				for w.taintValue() == "" {
					w.reconcile("job")
				}
				time.Sleep(evictDeadline + time.Minute)
				hinder(w)
				err := w.reconciler.sweep(t.Context())
				if value := w.taintValue(); value != "" {
					t.Errorf("the taint %s is left: %v", value, err)
				}
				w.told.Events <- "" // the end
				told := ""
				for event := range w.told.Events {
					if told += event; event == "" {
						break
					}
				}
				if !strings.Contains(told, ReasonTaintRemoved) {
					t.Errorf("told are %q", told)
				}
			})
		})
	}
}

// TestJobThatEndsOtherwiseLeavesNoTaint: its claim was deleted.
func TestJobThatEndsOtherwiseLeavesNoTaint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		for w.taintValue() == "" {
			w.reconcile("job")
		}
		claim, _ := boundClaim()
		w.remove(claim)
		says(t, w.runs(), v1alpha1.ResultFailed, ReasonClaimNotFound, "")
		w.clean()
	})
}

// TestJobThatTheAPIRefusesEndsAfterItsTaint, and not before, however late that is.
func TestJobThatTheAPIRefusesEndsAfterItsTaint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		for w.taintValue() == "" {
			w.reconcile("job")
		}
		w.reconciler.cfg.Reader = failing(w.reconciler.cfg.Reader, func(_ client.Object, l client.ObjectList) bool {
			_, is := l.(*corev1.PodList)
			return is
		})
		must(t, w.reconciler.changeEntry(t.Context(), "job-uid", func(e *ledgerEntry) { e.Start += 60 }))
		w.update("", "node-1", &corev1.Node{}, func(o client.Object) { o.(*corev1.Node).Spec.Taints[1].Value = "946684860" })
		time.Sleep((defaultRetryDeadline + 1) * time.Second)
		if err := w.pass(); !errors.Is(err, errAPI) || w.job("job").Status.Result != "" {
			t.Errorf("got %v, %+v", err, w.job("job").Status)
		}
		time.Sleep(time.Minute)
		says(t, w.runs(), v1alpha1.ResultFailed, ReasonEvictionGaveUp, "did not end within")
		w.clean()
	})
}

// TestLimits: whatever jobs there are, a claim, a driver and a node are spared.
func TestLimits(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	next := ledgerEntry{Namespace: "ns", Claim: "c", ClaimUID: "c", Driver: "d", Node: "n", JobUID: "next"}
	entry := func(claim, driver, node string, ago, took time.Duration) ledgerEntry {
		e := ledgerEntry{ClaimUID: next.ClaimUID, Driver: driver, Node: node, Start: now.Add(-ago).Unix()}
		if claim != "c" {
			e.ClaimUID = "other"
		}
		if took > 0 {
			e.End = e.Start + int64(took.Seconds())
		}
		return e
	}
	ours := func(e ledgerEntry) ledgerEntry { e.Namespace = "ns"; return e }
	theirs := entry("x", "d", "m", time.Minute, time.Second)
	for name, tc := range map[string]struct {
		l           ledger
		max         int
		spent, busy string
	}{
		"nothing":                 {},
		"the namespace's half":    {l: ledger{ours(theirs), ours(theirs)}, spent: "driver d had 2 evictions in the namespace"},
		"less than half":          {l: ledger{ours(theirs), theirs}},
		"the namespace's is open": {l: ledger{ours(entry("x", "d", "m", time.Minute, 0))}, max: 2, busy: "1 claims of the namespace"},
		"another's is open":       {l: ledger{entry("x", "d", "m", time.Minute, 0)}, max: 2},
		"once":                    {l: ledger{entry("c", "d", "m", 30*time.Minute, time.Minute)}},
		"twice":                   {l: ledger{entry("c", "d", "m", 30*time.Minute, time.Minute), entry("c", "d", "m", 20*time.Minute, time.Minute)}, spent: "evicted 2 times"},
		"twice, one long ago":     {l: ledger{entry("c", "d", "m", 80*time.Minute, time.Minute), entry("c", "d", "m", 20*time.Minute, time.Minute)}},
		"the driver's budget":     {l: ledger{entry("x", "d", "m", time.Minute, 1), entry("x", "d", "m", time.Minute, time.Second), entry("x", "d", "m", time.Minute, time.Second)}, spent: "driver d had 3"},
		"the node, five minutes":  {l: ledger{entry("x", "e", "n", 30*time.Minute, 5*time.Minute)}},
		"the node, six minutes":   {l: ledger{entry("x", "e", "n", 30*time.Minute, 6*time.Minute)}, spent: "node n had our taints for 6m0s"},
		"the node, one is open":   {l: ledger{entry("x", "e", "n", 6*time.Minute, 0)}, spent: "node n had our taints", busy: "evict.max is 1"},
		"another node's is open":  {l: ledger{entry("x", "e", "m", 6*time.Minute, 0)}, busy: "evict.max is 1"},
		"the claim's own is open": {l: ledger{entry("c", "d", "m", time.Minute, 0)}, busy: "evicts the claim's pods"},
	} {
		spent, busy := tc.l.hinders(next, clustersettings.Eviction{PerHour: ptr.To(3), Max: ptr.To(max(1, tc.max))}, now)
		if !strings.Contains(spent, tc.spent) || (spent == "") != (tc.spent == "") {
			t.Errorf("%s: spent %q", name, spent)
		}
		if !strings.Contains(busy, tc.busy) || (busy == "") != (tc.busy == "") {
			t.Errorf("%s: busy %q", name, busy)
		}
	}
}

// TestThirdEvictionInAnHourIsRefused although the jobs of the first two were deleted.
func TestThirdEvictionInAnHourIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		w.kubelet = func() { w.kubeletEnds(); w.scheduler() }
		for _, next := range []types.UID{"second", "third"} {
			says(t, w.runs(), v1alpha1.ResultSucceeded, ReasonHealthy, "")
			must(t, w.api.Delete(t.Context(), w.job("job")))
			job := evictJob("job")
			job.UID = next
			must(t, w.api.Create(t.Context(), job))
			w.node.found = []finding{shutdown}
		}
		says(t, w.runs(), v1alpha1.ResultFailed, ReasonEvictionRefused, "evicted 2 times within an hour")
		w.clean()
	})
}

// TestLedgerThatCannotBeRead keeps from evictions: nobody knows what was evicted. Other
// jobs go on.
func TestLedgerThatCannotBeRead(t *testing.T) {
	check := aJob("check")
	check.Spec.Mode = v1alpha1.ModeCheck
	w := newEvictWorld(t, check)
	w.writeLedger("[")
	if job := w.run("check"); job.Status.Result != v1alpha1.ResultSucceeded {
		t.Errorf("the check ended with %+v", job.Status)
	}
	if err := w.pass(); err == nil || w.taintValue() != "" || w.dryRuns != 0 {
		t.Errorf("got %v; taint %q", err, w.taintValue())
	}
}

// TestWithoutLedgerNothingIsEvicted: nobody would remove the taint.
func TestWithoutLedgerNothingIsEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEvictWorld(t)
		w.remove(theLedger())
		says(t, w.runs(), v1alpha1.ResultFailed, ReasonEvictionRefused, "no ConfigMap "+ledgerName)
		w.clean()
	})
}

// TestEvictionWaitsAsLongAsTheSettingSays, and looks again before it begins.
func TestEvictionWaitsAsLongAsTheSettingSays(t *testing.T) {
	for name, recovers := range map[string]bool{"stays sick": false, "recovers": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newEvictWorld(t)
				must(t, w.api.Update(t.Context(), theSettings("drivers: [driver]\nafter: 2m\n")))
				begin := time.Now()
				var first time.Duration
				w.kubelet = func() {
					if recovers && time.Since(begin) > time.Minute {
						w.node.found = nil
					}
					if first == 0 && w.taintValue() != "" {
						first = time.Since(begin)
					}
					w.kubeletEnds()
					w.scheduler()
				}
				says(t, w.runs(), v1alpha1.ResultSucceeded, ReasonHealthy, "")
				if recovers != (len(w.evicted) == 0) || !recovers && first < 2*time.Minute {
					t.Errorf("evicted %v after %v", w.evicted, first)
				}
			})
		})
	}
}
