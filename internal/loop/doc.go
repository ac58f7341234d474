// Package loop checks this node's volumes without being called: each one once per
// interval, and soon after its mounts changed. It changes nothing, and it looks at no
// volume itself: that is the engine's task. For one volume that a caller names use
// package healer.
package loop
