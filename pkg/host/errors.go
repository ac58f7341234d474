package host

import "github.com/csi-addons/node-healer/pkg/worker"

// ErrRefused marks an error that means "must not", not "went wrong".
var ErrRefused = worker.ErrRefused
