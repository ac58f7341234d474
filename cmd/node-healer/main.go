// node-healer serves the CSI-Addons Healer operation for the volumes of one
// node. See README.md.
package main

import "github.com/csi-addons/node-healer/pkg/app"

// version is set by the linker.
var version string

func main() { app.Main(app.Options{Version: version}) }
