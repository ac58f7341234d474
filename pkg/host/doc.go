// Package host describes the node without touching a volume: the mount table,
// what sysfs knows of devices and filesystems, kubelet's files, and who holds a
// superblock. What has to touch a volume, host asks a worker to do (pkg/workerops):
// one at a time at each storage, whoever asks.
//
// Do not put judgement here: host says what is, the providers say whether that
// is wrong.
package host
