package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is of all kinds of this package.
var GroupVersion = schema.GroupVersion{Group: "node-healer.csi-addons.io", Version: "v1alpha1"}

// AddToScheme adds the kinds of this package to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &VolumeHealJob{}, &VolumeHealJobList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
