// Package adminpb is the API of healerctl, as generated from admin.proto.
package adminpb

// TrailerUnlisted is the key of ListVolumes's trailer with why some volumes may not be
// among those that were sent; there is none where all were.
const TrailerUnlisted = "node-healer-unlisted-bin"
