// Package healer holds the words of the node healer as types: Volume, Case, MountPoint,
// Record, Condition, Step, Finding, Diagnosis, Report, Provider. It decides nothing:
// internal/engine takes a volume from a request to a proven answer with them, the packages
// below pkg/healer/provider add what is special about one kind of storage.
//
// It knows no gRPC, which pkg/nodeserver maps reports and errors to, and no node: the facts
// in a Case are plain data (pkg/facts).
package healer
