// Package healer holds the words of the node healer (Volume, Case, Finding,
// Step, Report) and the engine that takes one volume from a request to a
// proven answer.
//
// It knows no gRPC and no storage vendor: pkg/nodeserver maps its reports and
// errors to the wire, and each provider below pkg/healer/provider adds what is
// special about one kind of storage. Do not use it to look at mounts or
// devices directly; that is pkg/host.
package healer
