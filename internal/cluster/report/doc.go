// Package report tells the cluster how volumes are: by events on the claim and
// the pods that use a volume, and by an annotation on the claim that the
// CSI-Addons controller reads.
//
// It only passes on what callers of the server were told. What the API says comes
// from package kube.
package report
