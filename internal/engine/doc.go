// Package engine takes one volume from a request to a proven answer.
//
// Engine.Heal (engine.go) locks the volume (locks.go); heal.go is the whole call on one
// screen, and names the file of each of its parts. An observation (observe.go) goes on in
// probe.go, other_mount_points.go, observe_containers.go and write_check.go. What the engine
// needs of the node is the interface Node; it touches no mount and no device itself.
package engine
