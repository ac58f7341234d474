// Package engine takes one volume from a request to a proven answer.
//
// Engine.Heal (engine.go) locks the volume (locks.go) and loops (heal.go): observe
// (observe.go, probe.go, other_mount_points.go, observe_containers.go, write_check.go),
// diagnose, save the record (record_save.go), mend (mend.go, admit.go, run.go). What it
// needs of the node is the interface Node; it touches no mount and no device itself.
package engine
