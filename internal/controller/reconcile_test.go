package controller

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/csi-addons/node-healer/pkg/api"
	"github.com/csi-addons/node-healer/pkg/api/v1alpha1"
)

func TestJobAsksEveryPodOnEveryNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := podOn("node-3", "ended")
		ended.Status.Phase = corev1.PodSucceeded
		w := newWorld(t, aJob("job"), podOn("node-2", "c"), podOn("node-1", "b"), podOn("node-1", "a"), ended)
		job := w.run("job")
		var paths []string
		for _, c := range w.nodes.calls {
			paths = append(paths, c.node+" "+strings.Split(c.path, "/")[5])
		}
		if want := []string{"node-1 a-uid", "node-1 b-uid", "node-2 c-uid"}; !slices.Equal(paths, want) {
			t.Errorf("asked %v, want %v", paths, want)
		}
		if c := condition(job, v1alpha1.ConditionComplete); job.Status.Result != v1alpha1.ResultSucceeded || c.Reason != ReasonHealthy {
			t.Errorf("got %+v", job.Status)
		}
		if job.Status.Answered != "2/2" || job.Status.StartTime == nil || job.Status.CompletionTime == nil || ptr.Deref(job.Status.Abnormal, true) {
			t.Errorf("got %+v", job.Status)
		}
	})
}

// A node that does not answer keeps a job no longer because many of its pods use the volume.
func TestSilentNodeIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, aJob("job"), podOn("node-1", "a"), podOn("node-1", "b"))
		w.nodes.answers = []outcome{failed(status.Error(codes.DeadlineExceeded, ""))}
		w.reconcile("job")
		if len(w.nodes.calls) != 1 {
			t.Errorf("called %d times", len(w.nodes.calls))
		}
	})
}

// TestPodsThatAreNotAskedInTime are not called healthy, and not asked later.
func TestPodsThatAreNotAskedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, aJob("job"), podOn("node-1", "a"), podOn("node-1", "b"), podOn("node-1", "c"))
		w.nodes.during = func(string) { time.Sleep((defaultRetryDeadline/2 + 1) * time.Second) }
		job := w.run("job")
		c := condition(job, v1alpha1.ConditionFailed)
		if len(w.nodes.calls) != 2 || c.Reason != ReasonDeadline || !strings.Contains(c.Message, "1 of 3 pods were not asked") {
			t.Errorf("%d calls, %+v", len(w.nodes.calls), job.Status)
		}
	})
}

// TestOneSickPodIsEnough, also where others were not asked in time.
func TestOneSickPodIsEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, aJob("job"), podOn("node-1", "a"), podOn("node-1", "b"))
		w.nodes.during = func(string) { time.Sleep((defaultRetryDeadline + 1) * time.Second) }
		w.nodes.answers = []outcome{answered(true, "sick")}
		if job := w.run("job"); len(w.nodes.calls) != 1 || !ptr.Deref(job.Status.Abnormal, false) {
			t.Errorf("%d calls, %+v", len(w.nodes.calls), job.Status)
		}
	})
}

// TestJobSaysWhatTheAPIRefuses, and ends in time.
func TestJobSaysWhatTheAPIRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, aJob("job"), podOn("node-1", "a"))
		w.reconciler.cfg.Reader = failing(w.reconciler.cfg.Reader, func(o client.Object, _ client.ObjectList) bool {
			_, is := o.(*corev1.PersistentVolume)
			return is
		})
		step := func() error {
			_, err := w.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "job"}})
			return err
		}
		const said = "a request to the Kubernetes API failed; see the controller's log"
		if err := step(); !errors.Is(err, errAPI) {
			t.Errorf("got %v", err)
		}
		if c := condition(w.job("job"), v1alpha1.ConditionProgressing); c.Status != metav1.ConditionTrue || c.Reason != ReasonAPIError || c.Message != said {
			t.Errorf("got %+v", c)
		}
		time.Sleep((defaultRetryDeadline + 1) * time.Second)
		must(t, step())
		if c := condition(w.job("job"), v1alpha1.ConditionFailed); c.Reason != ReasonDeadline || c.Message != said {
			t.Errorf("got %+v", c)
		}
	})
}

// TestJobNamesNoObjectOfOthers where the API refuses one: its error does.
func TestJobNamesNoObjectOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, aJob("job"), podOn("node-1", "a"))
		w.reconciler.cfg.Reader = interceptor.NewClient(w.api.(client.WithWatch), interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, k client.ObjectKey, o client.Object, _ ...client.GetOption) error {
				if _, is := o.(*corev1.PersistentVolume); is {
					return apierrors.NewForbidden(corev1.Resource("persistentvolumes"), "of-another-tenant", errors.New("no"))
				}
				return c.Get(ctx, k, o)
			},
		})
		if _, err := w.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "job"}}); err == nil {
			t.Error("the log has nothing")
		}
		if c := condition(w.job("job"), v1alpha1.ConditionProgressing); c.Message != "the Kubernetes API answered Forbidden for persistentvolumes; see the controller's log" {
			t.Errorf("got %+v", c)
		}
	})
}

// TestTriesFollowTheTiers: the jitter adds up to a tenth.
func TestTriesFollowTheTiers(t *testing.T) {
	notChecked := failed(gatewayError(t, codes.Unauthenticated, "CALLER_NOT_CHECKED"))
	for name, tc := range map[string]struct {
		mode    v1alpha1.Mode
		answers []outcome
		limit   int32
		waits   []int
		// The reason with which the job is complete, or failed.
		complete, failed string
	}{
		"healed at the second try": {
			answers: []outcome{answered(true, ""), answered(false, "")}, limit: 6,
			waits: []int{60}, complete: ReasonHealthy,
		},
		"stays abnormal":            {answers: []outcome{answered(true, "")}, limit: 6, waits: []int{60, 120, 240}, failed: ReasonAbnormal},
		"abnormal when checked":     {mode: v1alpha1.ModeCheck, answers: []outcome{answered(true, "")}, limit: 6, complete: ReasonAbnormal},
		"transient":                 {answers: []outcome{hindered(ReasonNodeNotReady, passing, "")}, limit: 4, waits: []int{1, 2, 4, 8}, failed: ReasonNodeNotReady},
		"no other try":              {answers: []outcome{hindered(ReasonNodeNotReady, passing, "")}, failed: ReasonNodeNotReady},
		"terminal":                  {answers: []outcome{hindered(ReasonDisabled, final, "")}, limit: 6, failed: ReasonDisabled},
		"rights":                    {answers: []outcome{hindered(ReasonCredentialsRefused, distrusted, "")}, limit: 6, waits: []int{30}, failed: ReasonCredentialsRefused},
		"the gateway could not ask": {answers: []outcome{notChecked}, limit: 3, waits: []int{1, 2, 4}, failed: ReasonCallerNotChecked},
		"its outage ended": {
			answers: []outcome{notChecked, notChecked, notChecked, answered(false, "")}, limit: 6,
			waits: []int{1, 2, 4}, complete: ReasonHealthy,
		},
		"the server asks for time": {
			answers: []outcome{{class: passing, after: 40 * time.Second, reason: ReasonVolumeBusy}, answered(false, "")}, limit: 6,
			waits: []int{40}, complete: ReasonHealthy,
		},
		"the deadline": {
			answers: []outcome{{class: passing, after: 250 * time.Second, reason: ReasonVolumeBusy}}, limit: 60,
			waits: []int{250, 250}, failed: ReasonVolumeBusy,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				job := aJob("job")
				job.Spec.BackoffLimit, job.Spec.Mode = &tc.limit, cmp.Or(tc.mode, job.Spec.Mode)
				w := newWorld(t, job, podOn("node-1", "a"))
				w.nodes.answers = tc.answers
				job = w.run("job")
				got := w.nodes.waits()
				fits := slices.EqualFunc(got, tc.waits, func(got, want int) bool { return got >= want-1 && got <= want+want/10+1 })
				result, kind := v1alpha1.ResultFailed, v1alpha1.ConditionFailed
				if tc.complete != "" {
					result, kind = v1alpha1.ResultSucceeded, v1alpha1.ConditionComplete
				}
				if !fits || job.Status.Result != result || condition(job, kind).Reason != tc.complete+tc.failed {
					t.Errorf("waited %v, want %v; got %+v", got, tc.waits, job.Status)
				}
			})
		})
	}
}

func TestJobGoesOnFromItsStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, aJob("job"), podOn("node-1", "a"), podOn("node-2", "b"))
		w.nodes.answers = []outcome{answered(false, ""), hindered(ReasonVolumeBusy, passing, ""), answered(false, "")}
		for range 2 {
			w.reconcile("job")
			w.restart()
		}
		job := w.run("job")
		var nodes []string
		for _, c := range w.nodes.calls {
			nodes = append(nodes, c.node)
		}
		if want := []string{"node-1", "node-2", "node-2"}; !slices.Equal(nodes, want) || job.Status.Nodes[1].Tries != 2 {
			t.Errorf("asked %v, want %v: %+v", nodes, want, job.Status)
		}
	})
}

func TestPodsThatMoveAreFollowedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, aJob("job"), podOn("node-1", "a"))
		w.nodes.answers = []outcome{hindered(ReasonNodeNotReady, passing, "")}
		next := map[string]*corev1.Pod{"node-1": podOn("node-2", "b"), "node-2": podOn("node-3", "c")}
		w.nodes.during = func(node string) {
			must(t, w.api.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace("ns")))
			must(t, w.api.Create(t.Context(), next[node]))
		}
		job := w.run("job")
		if len(w.nodes.calls) != 2 || !job.Status.Moved || condition(job, v1alpha1.ConditionFailed).Reason != ReasonPodMoved {
			t.Errorf("%d calls: %+v", len(w.nodes.calls), job.Status)
		}
	})
}

// TestJobWaitsForAPod that replaces the one on a node that was asked.
func TestJobWaitsForAPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, aJob("job"), podOn("node-1", "a"))
		w.nodes.answers = []outcome{hindered(ReasonNodeNotReady, passing, ""), answered(false, "")}
		w.nodes.during = func(string) {
			if len(w.nodes.calls) > 1 {
				return
			}
			must(t, w.api.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace("ns")))
			pending := podOn("node-2", "b")
			pending.Status.Phase = corev1.PodPending
			must(t, w.api.Create(t.Context(), pending))
		}
		w.reconcile("job")
		time.Sleep(10 * time.Second)
		w.reconcile("job")
		if job := w.job("job"); condition(job, v1alpha1.ConditionProgressing).Reason != ReasonPodNotActive || len(w.nodes.calls) != 1 {
			t.Errorf("%d calls: %+v", len(w.nodes.calls), job.Status)
		}
		runs := podOn("node-2", "b")
		must(t, w.api.Delete(t.Context(), runs))
		must(t, w.api.Create(t.Context(), runs))
		if job := w.run("job"); job.Status.Result != v1alpha1.ResultSucceeded || job.Status.Nodes[0].Node != "node-2" {
			t.Errorf("got %+v", job.Status)
		}
	})
}

func TestOneCallForAClaimAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, aJob("one"), aJob("other"), podOn("node-1", "a"))
		release := make(chan struct{})
		w.nodes.during = func(string) { <-release }
		go func() {
			_, _ = w.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "one"}})
		}()
		synctest.Wait()
		if again := w.reconcile("other"); again.RequeueAfter == 0 || len(w.nodes.calls) != 1 {
			t.Errorf("%d calls, again after %v", len(w.nodes.calls), again.RequeueAfter)
		}
		close(release)
		synctest.Wait()
		if job := w.job("one"); job.Status.Result != v1alpha1.ResultSucceeded {
			t.Errorf("got %+v", job.Status)
		}
		if job := w.run("other"); job.Status.Result != v1alpha1.ResultSucceeded || len(w.nodes.calls) != 2 {
			t.Errorf("%d calls: %+v", len(w.nodes.calls), job.Status)
		}
	})
}

// TestNamespaceLeavesWorkersToOthers: a job that finds half of them at work for its namespace
// comes back later.
func TestNamespaceLeavesWorkersToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var objects []client.Object
		for _, name := range []string{"1", "2", "3", "4", "5"} {
			pod, job := podOn("node-"+name, name), aJob(name)
			pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName, job.Spec.Target.PersistentVolumeClaim = name, name
			objects = append(append(objects, pod, job), sickVolume(name, "driver")...)
		}
		w := newWorld(t, objects...)
		release := make(chan struct{})
		w.nodes.during = func(string) { <-release }
		for _, name := range []string{"1", "2", "3", "4"} {
			go w.reconcile(name)
		}
		synctest.Wait()
		var last ctrl.Result
		go func() { last = w.reconcile("5") }()
		synctest.Wait()
		if last.RequeueAfter == 0 || len(w.nodes.calls) != 4 {
			t.Errorf("%d calls, again after %v", len(w.nodes.calls), last.RequeueAfter)
		}
		close(release)
		synctest.Wait()
		if job := w.run("5"); job.Status.Result != v1alpha1.ResultSucceeded {
			t.Errorf("got %+v", job.Status)
		}
	})
}

func TestNodeIsNotCalledMoreOftenThanAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, aJob("job"), podOn("node-1", "a"))
		w.reconciler.calls.take("node-1")
		w.reconcile("job")
		if len(w.nodes.calls) != 0 {
			t.Error("it was called")
		}
		w.reconciler.calls.giveBack("node-1")
		if job := w.run("job"); job.Status.Result != v1alpha1.ResultSucceeded {
			t.Errorf("got %+v", job.Status)
		}
	})
}

func TestEndedJobIsDeletedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		job := aJob("job")
		job.Spec.TTLSecondsAfterFinished = ptr.To[int32](60)
		w := newWorld(t, job, podOn("node-1", "a"))
		w.run("job")
		time.Sleep(30 * time.Second)
		left := w.reconcile("job").RequeueAfter
		w.job("job") // is there
		time.Sleep(left)
		w.reconcile("job")
		if err := w.api.Get(t.Context(), client.ObjectKeyFromObject(job), job); !apierrors.IsNotFound(err) {
			t.Errorf("it is still there: %v", err)
		}
	})
}

func TestJobsThatHaveNothingToAsk(t *testing.T) {
	for reason, change := range map[string]func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume){
		ReasonNotInUse:      func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {},
		ReasonClaimNotBound: func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.UID = "another" },
		ReasonNotCSI: func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}}
		},
	} {
		t.Run(reason, func(t *testing.T) {
			w := newWorld(t, aJob("job"))
			claim, pv := boundClaim()
			change(claim, pv)
			must(t, w.api.Update(t.Context(), claim))
			must(t, w.api.Update(t.Context(), pv))
			job := w.run("job")
			got := condition(job, v1alpha1.ConditionFailed).Reason + condition(job, v1alpha1.ConditionComplete).Reason
			if got != reason || len(w.events.Events) != 2 || len(w.nodes.calls) != 0 {
				t.Errorf("%d events, %+v", len(w.events.Events), job.Status)
			}
		})
	}
}

// TestEventsAreFewer than tries: one for each reason, and two at the end.
func TestEventsAreFewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, aJob("job"), podOn("node-1", "a"))
		w.nodes.answers = []outcome{{class: api.Class{Tier: api.Transient}, reason: ReasonVolumeBusy, message: "busy"}}
		w.run("job")
		if len(w.nodes.calls) != 7 || len(w.events.Events) != 3 {
			t.Errorf("%d events of %d calls", len(w.events.Events), len(w.nodes.calls))
		}
	})
}

// TestEventsAreBounded however many jobs are made and deleted; what an eviction does is told.
func TestEventsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		told := events.NewFakeRecorder(10_000)
		w.reconciler.cfg.Events = told
		for i := range 2 * eventsAtOnce {
			job := aJob(strconv.Itoa(i))
			must(t, w.api.Create(t.Context(), job))
			w.reconcile(job.Name)
			must(t, w.api.Delete(t.Context(), job))
		}
		if n := len(told.Events); n != eventsAtOnce {
			t.Errorf("%d events", n)
		}
		claim, _ := boundClaim()
		p := &pass{Reconciler: w.reconciler, job: aJob("job"), volume: volume{claim: claim}}
		p.tellAct(ledgerEntry{Node: "node-1"}, corev1.EventTypeWarning, ReasonEvicting, "")
		if n := len(told.Events); n != eventsAtOnce+2 {
			t.Errorf("%d events with those of the eviction", n)
		}
	})
}
