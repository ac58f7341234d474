// Package kube reports what the Kubernetes API says of this node: through
// informers of the node's own pods, its Node and the ConfigMap with the
// settings, and through reads of everything else by name. Its costs therefore
// do not grow with the cluster.
//
// It decides nothing: what may be changed is package policy's, and what the
// cluster is told is package report's.
package kube
