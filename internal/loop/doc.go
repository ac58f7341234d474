// Package loop checks this node's volumes without being called: each one once per
// interval, and soon after its mounts changed. It heals those that are sick, if it may. It touches no
// volume itself: package engine does.
package loop
