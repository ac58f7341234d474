// Package healer holds the types of the node healer (Volume, Case, Finding,
// Step, Report) and the engine that takes one volume from a request to a
// proven answer.
//
// It knows no gRPC and no storage vendor: pkg/nodeserver maps its reports and
// errors to the wire, and each provider below pkg/healer/provider adds what is
// special about one kind of storage. Do not use it to read mounts or devices
// directly; that is pkg/host.
//
// One request: Engine.Heal locks the volume (locks.go) and loops (heal.go):
// observe (observe.go, probe.go, other_mount_points.go, observe_containers.go,
// write_check.go), diagnose, save the record (record_save.go), mend (mend.go,
// admit.go, run.go).
package healer
