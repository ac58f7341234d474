// Package host describes the node without touching a volume: the mount table,
// sysfs, kubelet's files, and which containers hold a mount. What has to touch
// a volume, host asks a worker to do (pkg/touch).
//
// Do not put judgement here: host says what is, the providers say whether that
// is wrong.
package host
