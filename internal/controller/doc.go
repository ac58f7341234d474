// Package controller runs VolumeHealJobs: it finds the volume of a claim, the nodes on
// which running pods use it and the gateways of those nodes, and calls them. It decides
// nothing about a volume; that is the node's.
//
// All that it knows is in the status of the jobs, so that another instance goes on
// where one ended. One instance at a time may run (leader election): that no two calls
// are made for one claim is kept in memory.
//
// What a node does without being asked is internal/loop; what it is asked for on the node
// itself is pkg/nodeserver.
package controller
