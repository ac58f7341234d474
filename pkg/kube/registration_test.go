package kube

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestRegistrationName(t *testing.T) {
	long := strings.Repeat("n", 200)
	cut := func(begin, data string) string {
		sum := sha256.Sum256([]byte(data))
		return fmt.Sprintf("%s-%x", begin, sum[:8])
	}
	tests := map[string]struct {
		node, namespace, owner string
		want                   string
	}{
		"short": {"node-1", "kube-system", "node-healer", "node-1-kube-system-daemonset-node-healer"},
		"as long as can be": {
			long, "ns", strings.Repeat("o", 253-200-len("-ns-daemonset-")),
			long + "-ns-daemonset-" + strings.Repeat("o", 39),
		},
		"too long": {
			long, "ns", strings.Repeat("o", 60),
			cut((long + "-ns-daemonset-" + strings.Repeat("o", 60))[:234], long+"nsdaemonset"+strings.Repeat("o", 60)),
		},
		"cut after a dot": {
			long, "ns", strings.Repeat("o", 19) + "." + strings.Repeat("p", 60),
			cut(long+"-ns-daemonset-"+strings.Repeat("o", 19), long+"nsdaemonset"+strings.Repeat("o", 19)+"."+strings.Repeat("p", 60)),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := registrationName(tt.node, tt.namespace, metav1.OwnerReference{Kind: "DaemonSet", Name: tt.owner})
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if bad := validation.NameIsDNSSubdomain(got, false); len(bad) > 0 {
				t.Errorf("%s: %v", got, bad)
			}
		})
	}
}

var registered = RegistrationConfig{
	Driver: "healer.example.com", NodeID: "node-1",
	Pod: "node-healer-abcde", Namespace: "kube-system", PodUID: "pod-uid-2", Port: 9070,
}

const registeredName = "node-1-kube-system-daemonset-node-healer"

func TestRegistrationNeeds(t *testing.T) {
	for name, spoil := range map[string]func(*RegistrationConfig){
		"driver":    func(c *RegistrationConfig) { c.Driver = "" },
		"node":      func(c *RegistrationConfig) { c.NodeID = "" },
		"pod":       func(c *RegistrationConfig) { c.Pod = "" },
		"namespace": func(c *RegistrationConfig) { c.Namespace = "" },
		"pod UID":   func(c *RegistrationConfig) { c.PodUID = "" },
		"TCP port":  func(c *RegistrationConfig) { c.Port = 70000 },
	} {
		cfg := registered
		spoil(&cfg)
		if _, err := NewRegistration(newMemoryAPI().client(t), cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// ownPod is the pod that registered names.
func ownPod() *corev1.Pod {
	yes := true
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: registered.Namespace, Name: registered.Pod, UID: "pod-uid-2",
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Node", Name: "node-1", UID: "node-uid"},
				{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "node-healer", UID: "set-uid", Controller: &yes, BlockOwnerDeletion: &yes},
			},
		},
	}
}

// registering runs a registration in a bubble, with a function that ends it.
func registering(t *testing.T, api *memoryAPI) (end func()) {
	t.Helper()
	r, err := NewRegistration(api.client(t), registered)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	synctest.Wait()
	return func() { cancel(); <-done }
}

// earlier is the object as another process left it, and what others wrote.
const earlier = `{
	"apiVersion": "csiaddons.openshift.io/v1alpha1", "kind": "CSIAddonsNode",
	"metadata": {
		"namespace": "kube-system", "name": "node-1-kube-system-daemonset-node-healer", "uid": "first",
		"finalizers": ["csiaddons.openshift.io/csiaddonsnode"],
		"annotations": {
			"csiaddons.openshift.io/networkfenceclass-names": "[\"a\"]",
			"sidecar.csiaddons.openshift.io/createdByPodUID": "pod-uid-1",
			"sidecar.csiaddons.openshift.io/lastUpdatedAt": "1999-01-01T00:00:00Z"
		},
		"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "node-healer", "uid": "set-uid", "controller": true}]
	},
	"spec": {"driver": {"name": "healer.example.com", "nodeID": "node-1", "endpoint": "pod://node-healer-12345.kube-system:9070"}},
	"status": {"state": "Connected"}
}`

const earlierPath = "apis/csiaddons.openshift.io/v1alpha1/namespaces/kube-system/csiaddonsnodes/" + registeredName

func (a *memoryAPI) addEarlier(t *testing.T) {
	t.Helper()
	var o object
	if err := json.Unmarshal([]byte(earlier), &o); err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.put("ADDED", earlierPath, o)
}

// take deletes the registration.
func (a *memoryAPI) take() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.remove(earlierPath)
}

// same compares an object of the API with JSON, but for what the API adds.
func same(t *testing.T, got object, want string) {
	t.Helper()
	raw, _ := json.Marshal(got)
	var a, b object
	_ = json.Unmarshal(raw, &a)
	if err := json.Unmarshal([]byte(want), &b); err != nil {
		t.Fatal(err)
	}
	for _, o := range []object{a, b} {
		meta, _ := o["metadata"].(object)
		delete(meta, "uid")
		delete(meta, "resourceVersion")
		delete(meta, "creationTimestamp")
	}
	left, _ := json.MarshalIndent(a, "", " ")
	right, _ := json.MarshalIndent(b, "", " ")
	if string(left) != string(right) {
		t.Errorf("got %s\nwant %s", left, right)
	}
}

func TestRegistrationIsMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newMemoryAPI()
		api.add(t, "pods", ownPod())
		end := registering(t, api)
		same(t, api.of("csiaddonsnodes")[registeredName], `{
			"apiVersion": "csiaddons.openshift.io/v1alpha1", "kind": "CSIAddonsNode",
			"metadata": {
				"namespace": "kube-system", "name": "node-1-kube-system-daemonset-node-healer",
				"annotations": {
					"sidecar.csiaddons.openshift.io/createdByPodUID": "pod-uid-2",
					"sidecar.csiaddons.openshift.io/lastUpdatedAt": "2000-01-01T00:00:00Z"
				},
				"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "node-healer", "uid": "set-uid", "controller": true}]
			},
			"spec": {"driver": {"name": "healer.example.com", "nodeID": "node-1", "endpoint": "pod://node-healer-abcde.kube-system:9070"}}
		}`)
		end()
		if len(api.of("csiaddonsnodes")) != 1 {
			t.Error("the object went with the process")
		}
	})
}

func TestRegistrationIsRenewedOnceAtEveryStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newMemoryAPI()
		api.add(t, "pods", ownPod())
		api.addEarlier(t)
		defer registering(t, api)()
		same(t, api.of("csiaddonsnodes")[registeredName], strings.NewReplacer(
			"pod-uid-1", "pod-uid-2", "1999-", "2000-", "node-healer-12345", "node-healer-abcde").Replace(earlier))
		for range 10 {
			api.hangUp()
			time.Sleep(time.Hour)
		}
		if n := api.count("patch csiaddonsnodes"); n != 1 {
			t.Errorf("%d patches", n)
		}
		if n := api.count("watch csiaddonsnodes"); n != 11 {
			t.Errorf("watched %d times", n)
		}
	})
}

func TestRegistrationComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newMemoryAPI()
		api.add(t, "pods", ownPod())
		// It is on its way when we come, and the controller's finalizer holds it.
		api.addEarlier(t)
		api.take()
		defer registering(t, api)()
		time.Sleep(time.Hour)
		if api.count("create csiaddonsnodes")+api.count("patch csiaddonsnodes") != 0 {
			t.Error("an object that is going was written to")
		}
		api.release()
		time.Sleep(time.Minute)
		if len(api.of("csiaddonsnodes")) != 1 {
			t.Fatal("it did not come back")
		}

		// Over and over, as a controller does that cannot reach us.
		before := api.count("create csiaddonsnodes")
		for range 3600 {
			if len(api.of("csiaddonsnodes")) > 0 {
				api.take()
			}
			time.Sleep(time.Second)
		}
		if n := api.count("create csiaddonsnodes") - before; n < 5 || n > 50 {
			t.Errorf("made anew %d times in an hour", n)
		}
		time.Sleep(time.Hour) // in peace
		api.take()
		time.Sleep(5 * time.Second)
		if len(api.of("csiaddonsnodes")) != 1 {
			t.Error("it did not come back soon")
		}
	})
}

// immutable has the API refuse to change the driver's name, as it does.
func (a *memoryAPI) immutable(verb, resource string) error {
	if verb != "patch" || resource != "csiaddonsnodes" || a.objects[earlierPath] == nil {
		return nil
	}
	if driver := driverOf(a.objects[earlierPath]); driver != registered.Driver {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "CSIAddonsNode"}, registeredName, nil)
	}
	return nil
}

func driverOf(node object) any { return node["spec"].(object)["driver"].(object)["name"] }

// An object that names another driver cannot be changed. One of our own is made
// anew, and no other.
func TestRegistrationOfAnotherDriver(t *testing.T) {
	tests := map[string]struct {
		change func(meta object)
		// meanwhile runs right before the object is deleted.
		meanwhile func(a *memoryAPI)
		want      string
	}{
		"ours":          {nil, nil, registered.Driver},
		"another set's": {func(meta object) { meta["ownerReferences"].([]any)[0].(object)["uid"] = "another" }, nil, "old.example.com"},
		"nobody's":      {func(meta object) { delete(meta, "ownerReferences") }, nil, "old.example.com"},
		"another one by now": {nil, func(a *memoryAPI) {
			meta := a.objects[earlierPath]["metadata"].(object)
			meta["uid"], meta["ownerReferences"] = "another", nil
		}, "old.example.com"},
		"changed by now": {nil, func(a *memoryAPI) { a.objects[earlierPath]["metadata"].(object)["resourceVersion"] = "changed" }, registered.Driver},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newMemoryAPI()
				api.add(t, "pods", ownPod())
				api.addEarlier(t)
				old := api.of("csiaddonsnodes")[registeredName]
				old["spec"].(object)["driver"].(object)["name"] = "old.example.com"
				if tt.change != nil {
					tt.change(old["metadata"].(object))
				}
				api.set(func(verb, resource string) error {
					if verb == "delete" && tt.meanwhile != nil {
						tt.meanwhile(api)
						tt.meanwhile = nil
					}
					return api.immutable(verb, resource)
				})
				defer registering(t, api)()
				time.Sleep(time.Minute)
				if now := api.of("csiaddonsnodes")[registeredName]; driverOf(now) != "old.example.com" {
					t.Fatalf("it went while the controller held it: %v", now)
				}
				api.release()
				time.Sleep(10 * time.Minute)
				now := api.of("csiaddonsnodes")[registeredName]
				if got := driverOf(now); got != tt.want {
					t.Errorf("the driver is %s, want %s", got, tt.want)
				}
				if n := api.count("delete csiaddonsnodes"); tt.want != registered.Driver && tt.change != nil && n > 0 {
					t.Errorf("tried %d times to delete what is not ours", n)
				}
			})
		})
	}
}

// release lets an object go that the controller holds.
func (a *memoryAPI) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	meta := a.objects[earlierPath]["metadata"].(object)
	delete(meta, "finalizers")
	if meta["deletionTimestamp"] != nil {
		a.remove(earlierPath)
	}
}

// A DaemonSet may be made anew without its pods, which the new one adopts.
func TestRegistrationForAnotherOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newMemoryAPI()
		api.add(t, "pods", ownPod())
		defer registering(t, api)()
		pod := ownPod()
		pod.OwnerReferences[1].UID = "another-set"
		api.add(t, "pods", pod)
		api.take()
		time.Sleep(time.Minute)
		owners := api.of("csiaddonsnodes")[registeredName]["metadata"].(object)["ownerReferences"].([]any)
		if uid := owners[0].(object)["uid"]; uid != "another-set" {
			t.Errorf("its owner is %s", uid)
		}
	})
}

func TestRegistrationWaits(t *testing.T) {
	tests := map[string]struct{ spoil, mend func(*memoryAPI) }{
		"for the definition": {
			func(a *memoryAPI) { a.missing["csiaddonsnodes"] = true },
			func(a *memoryAPI) { delete(a.missing, "csiaddonsnodes") },
		},
		"for the API": {
			func(a *memoryAPI) { a.fault = func(string, string) error { return errNoAPI } },
			func(a *memoryAPI) { a.fault = nil },
		},
		"for a right": {
			func(a *memoryAPI) {
				a.fault = func(verb, resource string) error {
					if verb == "create" {
						return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", nil)
					}
					return nil
				}
			},
			func(a *memoryAPI) { a.fault = nil },
		},
		"for another that makes it": {
			func(a *memoryAPI) {
				a.fault = func(verb, resource string) error {
					if verb == "create" {
						return apierrors.NewAlreadyExists(schema.GroupResource{Resource: resource}, "")
					}
					return nil
				}
			},
			func(a *memoryAPI) { a.fault = nil },
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newMemoryAPI()
				api.add(t, "pods", ownPod())
				tt.spoil(api)
				defer registering(t, api)()
				time.Sleep(time.Hour)
				if tries := api.count("list csiaddonsnodes") + api.count("get pods"); tries > 50 {
					t.Errorf("asked %d times in an hour", tries)
				}
				api.mu.Lock()
				tt.mend(api)
				api.mu.Unlock()
				time.Sleep(10 * time.Minute)
				if len(api.of("csiaddonsnodes")) != 1 {
					t.Error("it did not come")
				}
			})
		})
	}
}

func TestRegistrationSaysWhatIsWrong(t *testing.T) {
	tests := map[string]struct {
		spoil func(*testing.T, *memoryAPI, *corev1.Pod)
		says  string
	}{
		"no owner": {
			func(_ *testing.T, _ *memoryAPI, p *corev1.Pod) { p.OwnerReferences = nil },
			"pod node-healer-abcde in namespace kube-system belongs to no DaemonSet",
		},
		"another pod": {
			func(_ *testing.T, _ *memoryAPI, p *corev1.Pod) { p.UID = "other" },
			"has the UID other, and this one was told that it is pod-uid-2",
		},
		"no definition": {
			func(_ *testing.T, a *memoryAPI, _ *corev1.Pod) { a.missing["csiaddonsnodes"] = true },
			"the CSI-Addons controller is not installed",
		},
		"another driver's, of another owner": {
			func(t *testing.T, a *memoryAPI, p *corev1.Pod) {
				a.addEarlier(t)
				a.objects[earlierPath]["spec"].(object)["driver"].(object)["name"] = "old.example.com"
				p.OwnerReferences[1].UID = "another"
				a.fault = a.immutable
			},
			"kubectl delete csiaddonsnode -n kube-system " + registeredName,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			api, pod := newMemoryAPI(), ownPod()
			tt.spoil(t, api, pod)
			api.add(t, "pods", pod)
			r, err := NewRegistration(api.client(t), registered)
			if err != nil {
				t.Fatal(err)
			}
			if err = r.keep(t.Context()); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want %q", err, tt.says)
			}
		})
	}
}
