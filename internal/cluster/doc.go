// Package cluster knows what the Kubernetes API says of this node, decides by it whether
// a heal may change a volume, and tells the cluster how volumes are.
//
// Informers follow the node's own pods, its Node and the ConfigMap with the settings;
// everything else is read by name, so that the costs do not grow with the cluster. Right
// before a step the API itself is asked (docs/policy.md). What the cluster is told are
// events on the claim and the pods that use a volume, and an annotation on the claim that
// the CSI-Addons controller reads.
package cluster
