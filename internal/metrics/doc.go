// Package metrics counts what the server does and finds, and serves that to Prometheus on a
// unix socket. No label holds a volume's name or anything else that a request brings: each
// has a bounded number of values. For what happened to one volume see the log and the
// audit log.
package metrics
