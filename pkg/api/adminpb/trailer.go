// Package adminpb is the API of healerctl, as generated from admin.proto.
package adminpb

// The keys of ListVolumes's trailer.
const (
	// TrailerUnlisted has why some volumes may not be among those that were sent; there is
	// none where all were.
	TrailerUnlisted = "node-healer-unlisted-bin"
	// TrailerLoopOff is there while the node's own loop checks nothing.
	TrailerLoopOff = "node-healer-loop-off"
)
