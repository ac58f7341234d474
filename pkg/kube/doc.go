// Package kube is what this program knows of Kubernetes: what the cluster wants
// of the volumes on this node (the gate and its policy), who may call, and what
// it tells the cluster in turn (registration, events, a claim's health).
//
// It speaks to the API and to nobody else: what stands on the node is package
// host's, and what a step does is the engine's.
package kube
