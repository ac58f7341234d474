// Package wire reads messages of which this program has no type, by field number.
package wire

import (
	"path"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// GetInfo is the call with which kubelet asks a driver's registration for a PluginInfo, which is read into an
// empty message. That is not worth its module (k8s.io/kubelet/pkg/apis/pluginregistration/v1).
const GetInfo = "/pluginregistration.Registration/GetInfo"

// Endpoint returns the CSI socket that a PluginInfo of this driver names; empty if it names none, or one
// outside of kubelet's directory.
func Endpoint(info *emptypb.Empty, driver, kubeletRoot string) string {
	const kind, name, endpoint = 1, 2, 3
	field := map[protowire.Number]string{}
	Each(info.ProtoReflect().GetUnknown(), func(number protowire.Number, _ uint64, s []byte) { field[number] = string(s) })
	at := field[endpoint]
	if field[kind] != "CSIPlugin" || field[name] != driver || path.Clean(at) != at || !strings.HasPrefix(at, kubeletRoot+"/") {
		return ""
	}
	return at
}

// Each calls f for each varint and each sequence of bytes of a message, up to what
// cannot be read.
func Each(fields []byte, f func(number protowire.Number, n uint64, s []byte)) {
	for len(fields) > 0 {
		number, kind, size := protowire.ConsumeTag(fields)
		if size < 0 {
			return
		}
		fields = fields[size:]
		var n uint64
		var s []byte
		switch kind {
		case protowire.VarintType:
			n, size = protowire.ConsumeVarint(fields)
		case protowire.BytesType:
			s, size = protowire.ConsumeBytes(fields)
		default:
			size = protowire.ConsumeFieldValue(number, kind, fields)
		}
		if size < 0 {
			return
		}
		fields = fields[size:]
		f(number, n, s)
	}
}
