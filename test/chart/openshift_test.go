package chart

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// constraints is what is used here of security.openshift.io/v1 SecurityContextConstraints,
// as the API reference of OpenShift 4 names it. An unknown field fails the test.
type constraints struct {
	metav1.TypeMeta          `json:",inline"`
	metav1.ObjectMeta        `json:"metadata"`
	Users                    []string `json:"users"`
	Groups                   []string `json:"groups"`
	Priority                 *int32   `json:"priority"`
	AllowPrivilegedContainer bool     `json:"allowPrivilegedContainer"`
	AllowPrivilegeEscalation bool     `json:"allowPrivilegeEscalation"`
	AllowHostPID             bool     `json:"allowHostPID"`
	AllowHostIPC             bool     `json:"allowHostIPC"`
	AllowHostNetwork         bool     `json:"allowHostNetwork"`
	AllowHostPorts           bool     `json:"allowHostPorts"`
	AllowHostDirVolumePlugin bool     `json:"allowHostDirVolumePlugin"`
	ReadOnlyRootFilesystem   bool     `json:"readOnlyRootFilesystem"`
	AllowedCapabilities      []string `json:"allowedCapabilities"`
	DefaultAddCapabilities   []string `json:"defaultAddCapabilities"`
	RequiredDropCapabilities []string `json:"requiredDropCapabilities"`
	RunAsUser                strategy `json:"runAsUser"`
	SELinuxContext           strategy `json:"seLinuxContext"`
	FSGroup                  strategy `json:"fsGroup"`
	SupplementalGroups       strategy `json:"supplementalGroups"`
	SeccompProfiles          []string `json:"seccompProfiles"`
	Volumes                  []string `json:"volumes"`
}

type strategy struct {
	Type string `json:"type"`
	UID  *int64 `json:"uid"`
}

// OpenShift is not among the tests' APIs, and the only release of its Go types is
// of version 3. So the constraints are compared with what the pod of their account asks for.
func TestOpenShiftAdmitsThePods(t *testing.T) {
	all := objects{}
	all.add(t, build(t, "openshift"))
	for _, workload := range []string{"DaemonSet/node-healer", "DaemonSet/node-healer-gateway", "Deployment/node-healer-controller"} {
		_, name, _ := strings.Cut(workload, "/")
		t.Run(name, func(t *testing.T) {
			scc := decode[constraints](t, all["SecurityContextConstraints/"+name])
			template := templateOf(t, all, workload)
			pod := template.Spec
			if want := "system:serviceaccount:" + namespace + ":" + pod.ServiceAccountName; !slices.Equal(scc.Users, []string{want}) {
				t.Errorf("is for %v, not for %s alone", scc.Users, want)
			}
			if got := template.Annotations["openshift.io/required-scc"]; got != name {
				t.Errorf("the pod asks for the constraints %q", got)
			}
			if scc.AllowHostPID != pod.HostPID || scc.AllowHostNetwork != pod.HostNetwork || scc.AllowHostIPC != pod.HostIPC {
				t.Error("the host's namespaces are not those of the pod")
			}
			security := pod.Containers[0].SecurityContext
			if privileged := security.Privileged != nil && *security.Privileged; scc.AllowPrivilegedContainer != privileged {
				t.Errorf("privileged: allowed %v, the pod is %v", scc.AllowPrivilegedContainer, privileged)
			}
			if uid := scc.RunAsUser.UID; uid != nil && *uid != *pod.SecurityContext.RunAsUser {
				t.Errorf("the uid is %d, the pod's %d", *uid, *pod.SecurityContext.RunAsUser)
			}
			for _, v := range pod.Volumes {
				onHost, projected := v.HostPath != nil && scc.AllowHostDirVolumePlugin, v.Projected != nil
				if !(onHost && slices.Contains(scc.Volumes, "hostPath")) && !(projected && slices.Contains(scc.Volumes, "projected")) {
					t.Errorf("the volume %s is not allowed", v.Name)
				}
			}
		})
	}
	controller := objects{}
	controller.add(t, build(t, "controller"))
	for key := range controller {
		if all[key] == nil {
			t.Errorf("%s of the controller is missing", key)
		}
	}
	for key := range mustRender(t, nil) {
		if all[key] == nil {
			t.Errorf("%s of the default is missing", key)
		}
	}
}

// templateOf returns what the pods of a workload are made from.
func templateOf(t *testing.T, all objects, workload string) corev1.PodTemplateSpec {
	t.Helper()
	if strings.HasPrefix(workload, "Deployment/") {
		return decode[appsv1.Deployment](t, all[workload]).Spec.Template
	}
	return decode[appsv1.DaemonSet](t, all[workload]).Spec.Template
}

// decode reads an object; an unknown field fails the test.
func decode[T any](t *testing.T, object values) T {
	t.Helper()
	var typed T
	if object == nil {
		t.Fatal("there is no such object")
	}
	if err := yaml.UnmarshalStrict([]byte(text(t, object)), &typed); err != nil {
		t.Fatal(err)
	}
	return typed
}
