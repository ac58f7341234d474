// Package containers is the provider for what running containers have of a
// volume that the host has replaced or mounted since: a mount of a previous
// superblock, the bare directory beneath, a placeholder, an old device number.
// Its one step replaces a dead mount in a container by the host's healthy one.
//
// The engine lists and probes the containers' mounts and proves that they are
// the volume's. What is wrong on the host itself is for the providers asked
// before this one.
package containers
