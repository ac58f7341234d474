package docs

import _ "embed" // for the pages that programs show

// Conditions is conditions.md.
//
//go:embed conditions.md
var Conditions string

// Kernels is kernels.md.
//
//go:embed kernels.md
var Kernels string

// Controller is controller.md.
//
//go:embed controller.md
var Controller string
