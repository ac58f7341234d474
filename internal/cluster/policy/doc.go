// Package policy decides whether a heal may change a volume: by the mode that the
// cluster allows, by whether a pod wants the mount point, by whether this node may
// write to the device, and by what is left to drivers that repair themselves
// (docs/policy.md).
//
// What the API says comes from package kube, what the node has from package host.
package policy
