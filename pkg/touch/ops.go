package touch

import "github.com/csi-addons/node-healer/pkg/worker"

// The operations.
var (
	// Look sees what stands at paths and touches one superblock.
	Look = worker.Define("look", worker.Pooled, look)
	// Place puts a read-only clone of a staged mount on an empty place.
	Place = worker.Define("place", worker.Spent, place)
	// Settle gives a placed clone that stands alone its final attributes.
	Settle = worker.Define("settle", worker.Spent, settle)
	// TakeOff unmounts one interim mount from the top of a stack.
	TakeOff = worker.Define("take-off", worker.Spent, takeOff)
)

// Ops lists the operations for worker.Serve.
func Ops() []worker.Servable {
	return []worker.Servable{Look, Place, Settle, TakeOff}
}
