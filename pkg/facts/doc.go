// Package facts has what the kernel and kubelet say of volumes, as plain data that storage
// providers see. Nothing in it asks anything, and it imports nothing of this project.
package facts
